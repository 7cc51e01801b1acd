"""`loader=hdf5`: torch's DataLoader over an HDF5 file, read once a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optree
import torch

from fastloop.batch_rows import BatchRows
from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.torch_loader import as_fetched, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option


@option
class Hdf5:
    """`__getitems__` reads the rows of a batch in the order of the file, each chunk once, and puts
    them into the order that was asked for; nothing is left to collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from the file, which every worker opens for itself."""
        honours_only("hdf5", plan, *self.honours)
        open_reader = partial(_Reader, self.store, prepared.folder)
        open_reader().close()  # so that what is wrong with the file is told here, not by a worker
        rows = BatchRows(open_reader, prepared.num_samples)
        with closing(rows), torch_epochs(rows, plan, collate_fn=as_fetched) as epochs:
            yield epochs


class _Reader:
    """The datasets of an open file."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._datasets, self._structure = optree.tree_flatten(store.open(folder))
        if not all(hasattr(dataset, "chunks") for dataset in self._datasets):
            raise Unsupported("rows are read by h5py: store@loader.store=hdf5 gives such")

    def read(self, indices: Sequence[int]) -> Tree:
        rising, places = np.unique(np.asarray(indices), return_inverse=True)
        moved = len(rising) != len(places) or bool((places[1:] < places[:-1]).any())
        parts = _parts(rising, self._datasets[0].chunks[0])
        leaves = [_read(one, parts, places if moved else None) for one in self._datasets]
        return optree.tree_unflatten(self._structure, leaves)

    def close(self) -> None:
        self._datasets[0].file.close()


def _parts(rising: np.ndarray, chunk_rows: int) -> list[np.ndarray]:
    """What is read at once: rows of one chunk, or all where none is left out between them.

    h5py's own selection of single rows took 1.4 to 16 times as long as a slice a chunk (64 and 256
    of 20,000 rows of 3,136 bytes; chunks of 256 rows to 1).
    """
    if rising[-1] - rising[0] + 1 == len(rising):
        return [rising]
    return np.split(rising, np.flatnonzero(np.diff(rising // chunk_rows)) + 1)


def _read(dataset: Any, parts: list[np.ndarray], places: np.ndarray | None) -> torch.Tensor:
    pieces = [_rows(dataset, part) for part in parts]
    array = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    return torch.from_numpy(array if places is None else array.take(places, axis=0))


def _rows(dataset: Any, part: np.ndarray) -> np.ndarray:
    first, stop = int(part[0]), int(part[-1]) + 1
    found = dataset[first:stop]
    return found if len(found) == len(part) else found[part - first]
