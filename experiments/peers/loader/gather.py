"""`loader=peers/gather`: the limit of gathering rows. C copies them row by row with memcpy."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from shutil import which
from typing import ClassVar

import numpy as np
import optree
import torch
from pydantic import NonNegativeInt, PositiveInt

from experiments.peers.limits import iterate_after_work
from fastloop.core.fingerprints import fingerprint
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Unsupported, option
from fastloop.data.rows import read_into_memory, tensors_of
from fastloop.data.store_leaves import bytes_of

SOURCE = Path(__file__).with_name("gather.c")
COMPILE = ("cc", "-O3", "-march=native", "-shared", "-fPIC")


@option
class Gather:
    """Each thread copies its share of the rows, in the epoch's order, into a buffer of one batch.
    limits.py describes the batches."""

    store: Store
    in_memory: bool
    num_threads: PositiveInt
    rows_ahead: NonNegativeInt
    """A row is prefetched while the row this many places before it is copied; 0: there is no
    prefetch."""
    honours: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise Unsupported without a C compiler."""
        if which(COMPILE[0]) is None:
            raise Unsupported("peers/gather needs a C compiler: apt-get install gcc")

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; all of their work is done before the first batch."""
        rows = self.store.open(prepared.folder)
        rows = read_into_memory(rows) if self.in_memory else tensors_of(rows)
        leaves, structure = optree.tree_flatten(rows)
        gather_batches, size = gather_library().gather_batches, plan.loading.batch_size
        buffers = [
            [torch.zeros(size, *leaf.shape[1:], dtype=leaf.dtype) for leaf in leaves]
            for _ in range(self.num_threads)
        ]

        def gather(thread: int, indices: np.ndarray) -> None:
            for source, batch in zip(leaves, buffers[thread], strict=True):
                sizes = len(indices), size, source[0].nbytes, self.rows_ahead
                gather_batches(address(source), address(batch), indices.ctypes.data, *sizes)

        batches = [optree.tree_unflatten(structure, buffer) for buffer in buffers]
        with ThreadPoolExecutor(self.num_threads) as pool:
            yield partial(iterate_after_work, pool, gather, batches, plan, prepared.num_samples)


def address(leaf: torch.Tensor) -> ctypes.c_void_p:
    """The address of a tensor's memory."""
    return ctypes.c_void_p(np.frombuffer(bytes_of(leaf), np.uint8).ctypes.data)


@cache
def gather_library() -> ctypes.CDLL:
    """Load gather.c, which is compiled for this machine on first use. Raises Unsupported if that
    fails."""
    folder = Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs")) / "compiled"
    path = folder / f"gather-{fingerprint(SOURCE.read_text(), COMPILE)[:12]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_suffix(f".{os.getpid()}")
        command = [*COMPILE, str(SOURCE), "-o", str(partial_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unsupported(f"{' '.join(COMPILE)} {SOURCE.name}: {done.stderr.splitlines()[0]}")
        partial_path.replace(path)
    library = ctypes.CDLL(str(path))
    library.gather_batches.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4
    library.gather_batches.restype = None
    return library
