"""`store=litdata`: chunks of LitData, with a list of the leaves of each sample."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.store_leaves import array_of, structure_text

LIBRARY = Library("litdata", "store=litdata", "pip install litdata")
INDEX, LAYOUT = "index.json", "layout.json"
"""Names of the index of the chunks, which LitData writes, and of fastloop's file with the structure
of a sample."""
OPTION, ALTERNATIVE = "store=litdata", "store=torch_storage"
"""Names, in error messages, of this option and of one that holds the dtypes that LitData lacks."""


@dataclass(frozen=True)
class LitDataChunks:
    """The folder of the chunks, which are not yet read, and the structure of a sample."""

    folder: Path
    num_chunks: int
    """Number of chunks in the folder."""
    structure: Any
    """torch's TreeSpec of a sample."""


@option
class LitDataStore:
    """Chunks, as `litdata.optimize` writes them in its workers.

    A sample is stored as the list of its leaves, which are tensors. LitData shuffles the order of
    the chunks first, and then the samples of each chunk.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    num_shards: PositiveInt
    """Number of chunks. A worker reads whole chunks, so each worker needs at least one chunk."""

    def check_installed(self) -> None:
        """Raise Unsupported without LitData."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write the samples one after another, and the structure of a sample.

        chunks: batches of successive samples. num_samples: number of all samples, which determines
        the size of LitData's chunks. Raises Unsupported without LitData, for a dtype that numpy or
        LitData lacks, and for a structure that has no text.
        """
        LIBRARY.load()
        cache = LIBRARY.load("litdata.streaming.cache").Cache(
            str(folder), chunk_size=-(-num_samples // self.num_shards)
        )
        count = 0
        for chunk in chunks:
            leaves, structure = pytree.tree_flatten(chunk)
            # array_of raises Unsupported for a dtype that numpy lacks. The arrays are not used.
            for leaf in leaves:
                array_of(leaf, OPTION, ALTERNATIVE)
            if not count:
                text = structure_text(structure, OPTION)
                (folder / LAYOUT).write_text(json.dumps({"structure": text}))
            for row in zip(*leaves, strict=True):
                try:
                    cache._add_item(count, [leaf.clone() for leaf in row])
                except KeyError as error:
                    # LitData looks the dtype up in a table of those that it supports.
                    kind = str(error).removeprefix("torch.")
                    raise Unsupported(f"{OPTION} can't hold {kind}; {ALTERNATIVE} can") from error
                count += 1
        cache.done()
        cache.merge(1)

    def open(self, folder: Path) -> LitDataChunks:
        """The chunks of the folder.

        Raises BadData if store=litdata has not written the folder, or if the chunks hold anything
        but tensors, because other items may be pickles.
        """
        try:
            structure = json.loads((folder / LAYOUT).read_text())["structure"]
            index = json.loads((folder / INDEX).read_text())
            formats = index["config"]["data_format"]
            if not all("tensor" in each for each in formats):
                raise ValueError(f"data_format is {formats}")
            count = len(index["chunks"])
            return LitDataChunks(folder, count, pytree.treespec_loads(structure))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not written by store=litdata: {error}") from error
