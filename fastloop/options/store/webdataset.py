"""`store=webdataset`: tar files in webdataset's layout, with a .npy file for each leaf of a sample.

webdataset calls such a tar file a shard.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, option
from fastloop.data.store_leaves import array_of, structure_text

LIBRARY = Library("webdataset", "store=webdataset", "pip install webdataset")
SHARDS, LAYOUT = "rows-%06d.tar", "layout.json"
"""Names of the tar files, with their numbers, and of the file with the structure of a sample."""
OPTION, ALTERNATIVE = "store=webdataset", "store=torch_storage"
"""Names in messages: this store, and a store that also holds the dtypes that numpy lacks."""


@dataclass(frozen=True)
class TarShards:
    """The paths of the tar files, which are not yet read, and the structure of a sample."""

    paths: list[str]
    """Paths of the tar files, in the order of the samples."""
    structure: Any
    """torch's TreeSpec of a sample."""

    def files_of_a_sample(self) -> list[str]:
        """The extension of each leaf's file, in the order of the leaves."""
        return [f"{number}.npy" for number in range(self.structure.num_leaves)]


@option
class WebDatasetStore:
    """Shards as webdataset's ShardWriter writes them, with a file `<sample>.<leaf>.npy` for each
    leaf.

    A loader that shuffles first shuffles the order of the shards.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    num_shards: PositiveInt
    """Number of tar files. A worker reads whole shards, so each worker of each rank needs at least
    one shard."""

    def check_installed(self) -> None:
        """Raise Unsupported without webdataset."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write sample after sample to the shards.

        Raises Unsupported without webdataset, and for dtypes that numpy lacks.
        """
        wds = LIBRARY.load()
        count = 0
        # With a fixed mtime, the shards of equal samples are equal whenever they are written.
        with wds.ShardWriter(
            str(folder / SHARDS), maxcount=-(-num_samples // self.num_shards), verbose=0, mtime=0
        ) as shards:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                arrays = [array_of(leaf, OPTION, ALTERNATIVE) for leaf in leaves]
                if not count:
                    text = structure_text(structure, OPTION)
                    (folder / LAYOUT).write_text(json.dumps({"structure": text}))
                for row in zip(*arrays, strict=True):
                    files = {f"{number}.npy": _npy(leaf) for number, leaf in enumerate(row)}
                    shards.write({"__key__": f"{count:09d}", **files})
                    count += 1

    def open(self, folder: Path) -> TarShards:
        """The shards; raises BadData if the folder has no layout file, or a broken one."""
        paths = sorted(str(path) for path in folder.glob("rows-*.tar"))
        try:
            structure = json.loads((folder / LAYOUT).read_text())["structure"]
            return TarShards(paths, pytree.treespec_loads(structure))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not written by store=webdataset: {error}") from error


def _npy(row: Any) -> bytes:
    """The bytes of a .npy file with the row, which is an array or a scalar."""
    file = io.BytesIO()
    np.save(file, row, allow_pickle=False)
    return file.getvalue()
