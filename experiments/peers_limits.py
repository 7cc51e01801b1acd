"""The machine's limits as loaders of one's own, rows beside the others: an epoch's whole work is
done when it is asked for, and nothing else; then the batches come out of the buffers it was done in
as often as there are any. Their number and kind are right, and not what is in them.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from shutil import which
from typing import Any, ClassVar

import numpy as np
import optree
import torch
from pydantic import NonNegativeInt, PositiveInt

from fastloop.files import fingerprint
from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.rows import bytes_of, read_into_memory, tensors_of
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option

SOURCE = Path(__file__).with_name("peers_gather.c")
COMPILE = ("cc", "-O3", "-march=native", "-shared", "-fPIC")


@option
class Gather:
    """memcpy row by row in C, each thread its share of the batches into a buffer of its own."""

    store: Store
    in_memory: bool
    num_threads: PositiveInt
    rows_ahead: NonNegativeInt
    honours: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise Unsupported without a C compiler."""
        if which(COMPILE[0]) is None:
            raise Unsupported("peers/gather needs a C compiler: apt-get install gcc")

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        honours_only("peers/gather", plan, *self.honours)
        rows = self.store.open(prepared.folder)
        rows = read_into_memory(rows) if self.in_memory else tensors_of(rows)
        leaves, structure = optree.tree_flatten(rows)
        gather, size = compiled().gather_batches, plan.batch_size
        buffers = [
            [torch.zeros(size, *leaf.shape[1:], dtype=leaf.dtype) for leaf in leaves]
            for _ in range(self.num_threads)
        ]

        def work(thread: int, picks: np.ndarray) -> None:
            for source, batch in zip(leaves, buffers[thread], strict=True):
                sizes = len(picks), size, source[0].nbytes, self.rows_ahead
                gather(address(source), address(batch), picks.ctypes.data, *sizes)

        batches = [optree.tree_unflatten(structure, one) for one in buffers]
        with ThreadPoolExecutor(self.num_threads) as pool:
            yield partial(epoch_of, pool, work, batches, plan, prepared.num_samples)


@option
class Decode:
    """Each thread decodes and resizes its share of the files into a buffer of its own; of datasets
    that can be told where to (`into`)."""

    store: ClassVar[None] = None
    num_threads: PositiveInt
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        honours_only("peers/decode", plan, *self.honours)
        samples: Any = prepared.dataset.open()
        if not hasattr(samples, "into"):
            raise Unsupported(f"peers/decode: {prepared.label} has no encoded images of one size")
        shape = (plan.batch_size, *samples.shape)
        buffers = [torch.zeros(shape, dtype=torch.uint8) for _ in range(self.num_threads)]

        def work(thread: int, picks: np.ndarray) -> None:
            batch = buffers[thread].numpy()
            for place, index in enumerate(picks.tolist()):
                samples.into(index, batch[place % plan.batch_size])

        labels = torch.zeros(plan.batch_size, dtype=torch.int64)
        batches = [(one, labels) for one in buffers]
        with ThreadPoolExecutor(self.num_threads) as pool:
            yield partial(epoch_of, pool, work, batches, plan, prepared.num_samples)


def epoch_of(
    pool: ThreadPoolExecutor,
    work: Callable[[int, np.ndarray], None],
    batches: Sequence[Tree],
    plan: Plan,
    num_samples: int,
    epoch: int,
) -> Iterator[Tree]:
    """Batches of that number and size, after `work` has been done with all of the indices: each
    thread has a share, in whole batches but for the last."""
    size, picks = plan.batch_size, epoch_indices(plan.order, num_samples, plan.seed, epoch).numpy()
    if plan.drop_last:
        picks = picks[: len(picks) - len(picks) % size]
    share = -(-len(picks) // (size * len(batches))) * size
    shares = [picks[start : start + share] for start in range(0, len(picks), share)]
    for done in [pool.submit(work, thread, one) for thread, one in enumerate(shares)]:
        done.result()
    whole, short = divmod(len(picks), size)
    for number in range(whole):
        yield batches[number % len(batches)]
    if short:
        yield optree.tree_map(lambda leaf: leaf[:short], batches[0])


def address(leaf: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(np.frombuffer(bytes_of(leaf), np.uint8).ctypes.data)


@cache
def compiled() -> ctypes.CDLL:
    """peers_gather.c, compiled for this machine on first use; raises Unsupported where it can't
    be."""
    folder = Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs")) / "compiled"
    library = folder / f"peers_gather-{fingerprint(SOURCE.read_text(), COMPILE)[:12]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        beside = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [*COMPILE, str(SOURCE), "-o", str(beside)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unsupported(f"{' '.join(COMPILE)} {SOURCE.name}: {done.stderr.splitlines()[0]}")
        beside.replace(library)
    found = ctypes.CDLL(str(library))
    found.gather_batches.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4
    found.gather_batches.restype = None
    return found
