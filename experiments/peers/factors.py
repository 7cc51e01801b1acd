"""Factors by which FastLoader is faster than each rival over rows in memory, by workload.

Nothing is done with the batches. Every loop has a process of its own, which lives through all
rounds and is called in turn; factors are paired by round. See README.md.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from experiments.peers.bare_integers import PermutedSlices
from experiments.peers.lines import Line, figure, ratio_by_round, times
from experiments.peers.loaders import IndexTensorSampler, RowsByIndexTensor
from experiments.peers.prefetching_gather import PrefetchingGather
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.workloads import FILL_BYTE
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between

LENGTH = 1024
LEAST_ROUND_S = 0.3
GATHER = "the gather alone"
Batches = Iterable[Any]


@dataclass(frozen=True)
class Case:
    """A workload, its rivals, and the factor that FastLoader is to reach."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    rivals: tuple[str, ...]
    least: float
    least_dataloader: float = 0
    """Likewise over DataLoader alone; 0: that is no goal of its own."""
    converts: bool = False
    """Batches of uint8 rows are converted to normalized floats."""
    hwc: bool = False
    """Rows are (height, width, channels), converted to (channels, height, width) per channel."""
    tokens: int = 0
    """Number of tokens, of which rows are random windows; 0: rows are stored."""
    label: bool = False

    @property
    def batches(self) -> int:
        return -(-self.count // self.batch_size)


CASES = {
    "A: 60,000 x (1, 28, 28) float32": Case(
        60_000, (1, 28, 28), "float32", 256, ("DataLoader", "grain", "turboloader"), 2, label=True
    ),
    "B: uint8 to normalized float32": Case(
        60_000, (1, 28, 28), "uint8", 256, ("DataLoader", "grain"), 3, converts=True, label=True
    ),
    "D: 3 x 224 x 224 uint8": Case(
        6_144, (3, 224, 224), "uint8", 256, ("DataLoader", "grain", "turboloader"), 2.5, label=True
    ),
    "E: 300,000 integers": Case(300_000, (), "int64", 300, ("numpy loop", "DataLoader"), 2, 6),
    "rows of 16 bytes": Case(
        2_000_000, (4,), "float32", 1024, ("DataLoader", "grain", "turboloader"), 3
    ),
    "table: 30 floats and a label": Case(
        1_000_000, (30,), "float32", 1024, ("DataLoader", "grain", "turboloader"), 2.5, label=True
    ),
    "64 x 64 x 3 HWC to CHW float32": Case(
        20_000, (64, 64, 3), "uint8", 256, ("DataLoader",), 2.5, converts=True, hwc=True, label=True
    ),
    "tokens: windows of 1,024": Case(
        32_000, (LENGTH,), "uint16", 32, ("nanoGPT", "turboloader"), 3, tokens=10**9
    ),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@cache
def source(case: Case) -> tuple[torch.Tensor, ...]:
    """Rows and, where there are any, labels; of tokens the one-dimensional array."""
    if case.tokens:
        return (torch.from_numpy(np.full(case.tokens, FILL_BYTE, np.uint16)),)
    if not case.shape:
        return (torch.arange(case.count),)
    rows = torch.empty((case.count, *case.shape), dtype=getattr(torch, case.dtype))
    rows.view(-1).view(torch.uint8).fill_(FILL_BYTE)
    return (rows, torch.arange(case.count)) if case.label else (rows,)


def tree(case: Case) -> Any:
    """FastLoader's source."""
    from fastloop import Windows, converted

    rows, *labels = source(case)
    column: Any = rows
    if case.tokens:
        column = Windows(rows.numpy(), LENGTH, count=case.count)
    elif case.hwc:
        column = converted(rows, mean=MEAN, std=STD, source_layout="HWC")
    elif case.converts:
        column = converted(rows, mean=0.5, std=0.25)
    return (column, *labels) if labels else column


def fastloader(case: Case) -> Batches:
    from fastloop import FastLoader

    return FastLoader(tree(case), case.batch_size, shuffle=True)


@dataclass(frozen=True)
class InPlace:
    """Batches converted in the loop, each operation in place, as its framework's users write it."""

    batches: Batches
    hwc: bool

    def __iter__(self) -> Iterator[Any]:
        mean = torch.tensor(MEAN)[:, None, None] if self.hwc else 0.5
        std = torch.tensor(STD)[:, None, None] if self.hwc else 0.25
        for stored, *labels in self.batches:
            rows = torch.as_tensor(stored)
            images = rows.permute(0, 3, 1, 2) if self.hwc else rows
            yield images.to(torch.float32).div_(255).sub_(mean).div_(std), *labels


def dataloader(case: Case) -> Batches:
    sampler = IndexTensorSampler(case.count, case.batch_size)
    batches = DataLoader(RowsByIndexTensor(source(case)), batch_size=None, sampler=sampler)
    return InPlace(batches, case.hwc) if case.converts else batches


@dataclass(frozen=True, eq=False)
class IndexBatches:
    """A source of whole batches for grain: an item is a batch, by its indices."""

    case: Case
    order: np.ndarray

    def __len__(self) -> int:
        return self.case.batches

    def __getitem__(self, number: int) -> Any:
        size = self.case.batch_size
        indices = self.order[number * size : (number + 1) * size]
        return tuple(leaf.numpy().take(indices, axis=0) for leaf in source(self.case))


@dataclass(frozen=True)
class GrainEpochs:
    """grain without threads, as its documentation recommends for data in memory."""

    case: Case

    def __iter__(self) -> Iterator[Any]:
        import grain

        batches = IndexBatches(self.case, torch.randperm(self.case.count).numpy())
        dataset = grain.MapDataset.source(batches)
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return iter(dataset.to_iter_dataset(options))


def by_grain(case: Case) -> Batches:
    batches = GrainEpochs(case)
    return InPlace(batches, case.hwc) if case.converts else batches


def by_turboloader(case: Case) -> Batches:
    import turboloader

    arrays = [leaf.numpy() for leaf in source(case)]
    if case.tokens:
        return turboloader.TokenDataLoader(
            arrays[0],
            LENGTH,
            case.batch_size,
            shuffle=True,
            steps_per_epoch=case.batches,
            return_targets=False,
        )
    return turboloader.ArrayDataLoader(*arrays, batch_size=case.batch_size, shuffle=True)


def numpy_loop(case: Case) -> Batches:
    return PermutedSlices(source(case)[0].numpy())


@dataclass(frozen=True)
class RandomWindows:
    """nanoGPT's get_batch: a list of slices that are converted and stacked."""

    case: Case

    def __iter__(self) -> Iterator[torch.Tensor]:
        tokens = source(self.case)[0].numpy()
        for _ in range(self.case.batches):
            starts = torch.randint(len(tokens) - LENGTH, (self.case.batch_size,)).tolist()
            windows = [tokens[start : start + LENGTH].astype(np.int64) for start in starts]
            yield torch.stack([torch.from_numpy(window) for window in windows])


LOOPS: dict[str, Callable[[Case], Batches]] = {
    "FastLoader": fastloader,
    "DataLoader": dataloader,
    "grain": by_grain,
    "turboloader": by_turboloader,
    "numpy loop": numpy_loop,
    "nanoGPT": RandomWindows,
}


@cache
def warm_loop(loop: str, case: Case) -> Batches:
    """The loop that a process uses in all rounds: later rounds find it warm."""
    torch.set_num_threads(1)  # more of them made every rival slower
    return LOOPS[loop](case)


def epoch_ms(loop: str, case: Case) -> float:
    """Milliseconds of an epoch, on average over LEAST_ROUND_S."""
    batches, start, epochs = warm_loop(loop, case), now_ns(), 0
    while seconds_between(start, now_ns()) < LEAST_ROUND_S:
        delivered = sum(1 for _ in _bounded(batches, case.batches))
        assert delivered == case.batches, f"{loop}: {delivered} batches of {case.batches}"
        epochs += 1
    return 1e3 * seconds_between(start, now_ns()) / epochs


def _bounded(batches: Batches, count: int) -> Iterator[Any]:
    """At most `count` batches: some loaders of tokens are endless."""
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number == count:
            return


def gather_ms(case: Case) -> float:
    """Milliseconds of an epoch of nothing but the gather, on average over LEAST_ROUND_S."""
    gather, start, epochs_ms = PrefetchingGather(tree(case)), now_ns(), []
    while seconds_between(start, now_ns()) < LEAST_ROUND_S:
        epochs_ms.append(1e3 * gather.epoch_s())
    return sum(epochs_ms) / len(epochs_ms)


def factors(num_rounds: int) -> list[Line]:
    return [line for name, case in CASES.items() for line in factors_of(name, case, num_rounds)]


def factors_of(name: str, case: Case, num_rounds: int) -> list[Line]:
    optional = ("grain", "turboloader")
    rivals = [rival for rival in case.rivals if rival not in optional or find_spec(rival)]
    loops = ["FastLoader", *rivals]
    with processes([*loops, GATHER]) as call:
        calls = {loop: partial(call[loop], epoch_ms, loop, case) for loop in loops}
        calls[GATHER] = partial(call[GATHER], gather_ms, case)
        took_ms = measure_in_rounds(num_rounds, calls)
    lines = [Line(f"{name}: {loop}", figure(values, "ms")) for loop, values in took_ms.items()]
    best = min(rivals, key=lambda rival: stats.median(took_ms[rival]))
    ratio = ratio_by_round(took_ms[best], took_ms["FastLoader"])
    label = f"{name}: time of the best rival, {best}, over FastLoader's"
    lines += [Line(label, times(ratio), f"at least {case.least:g}", ratio.estimate >= case.least)]
    if case.least_dataloader:
        ratio = ratio_by_round(took_ms["DataLoader"], took_ms["FastLoader"])
        label, least = f"{name}: time of DataLoader over FastLoader's", case.least_dataloader
        lines.append(Line(label, times(ratio), f"at least {least:g}", ratio.estimate >= least))
    share = ratio_by_round(took_ms[GATHER], took_ms["FastLoader"])
    return [*lines, Line(f"{name}: share of the gather", times(share))]
