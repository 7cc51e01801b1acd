"""The factors by which FastLoader is faster than its rivals over rows in memory, by workload.

Nothing is done with the batches. Every loop has its own process, which lives through all rounds and
is called in turn; factors are paired by round. See README.md.
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
from experiments.peers.plain_gather import PlainGather
from experiments.peers.prefetching_gather import PrefetchingGather
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.required_factors import CASES, LENGTH, MEAN, STD, Case, source, tree
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between

LEAST_ROUND_S = 0.3
GATHER, PLAIN_GATHER = "the gather alone", "the plain gather"
Batches = Iterable[Any]


def fastloader(case: Case) -> Batches:
    """FastLoader over the case's source."""
    from fastloop import FastLoader

    return FastLoader(tree(case), case.batch_size, shuffle=True, seed=0)


@dataclass(frozen=True)
class InPlace:
    """Batches that the loop converts with in-place operations, as users of the framework write
    it."""

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
    """DataLoader with its best settings for rows in memory."""
    sampler = IndexTensorSampler(case.count, case.batch_size)
    batches = DataLoader(RowsByIndexTensor(source(case)), batch_size=None, sampler=sampler)
    return InPlace(batches, case.hwc) if case.converts else batches


@dataclass(frozen=True, eq=False)
class IndexBatches:
    """A source for grain in which each item is a whole batch."""

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
    """Epochs of grain without threads, as its documentation recommends for data in memory."""

    case: Case

    def __iter__(self) -> Iterator[Any]:
        import grain

        batches = IndexBatches(self.case, torch.randperm(self.case.count).numpy())
        dataset = grain.MapDataset.source(batches)
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return iter(dataset.to_iter_dataset(options))


def by_grain(case: Case) -> Batches:
    """grain over the case's source."""
    batches = GrainEpochs(case)
    return InPlace(batches, case.hwc) if case.converts else batches


def by_turboloader(case: Case) -> Batches:
    """turboloader's loader of arrays, or of tokens."""
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
    return turboloader.ArrayDataLoader(*arrays, batch_size=case.batch_size, shuffle=True, seed=0)


def numpy_loop(case: Case) -> Batches:
    """The numpy loop over the case's rows."""
    return PermutedSlices(source(case)[0].numpy())


@dataclass(frozen=True)
class RandomWindows:
    """nanoGPT's get_batch: slices at random starts, which are converted and stacked."""

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
    """The loop that a process uses in all rounds, so that it is warm in later ones."""
    # With more threads every rival was slower.
    torch.set_num_threads(1)
    return LOOPS[loop](case)


def epoch_ms(loop: str, case: Case) -> float:
    """Milliseconds per epoch, averaged over at least LEAST_ROUND_S."""
    batches, start, epochs = warm_loop(loop, case), now_ns(), 0
    while seconds_between(start, now_ns()) < LEAST_ROUND_S:
        delivered = sum(1 for _ in _bounded(batches, case.batches))
        assert delivered == case.batches, f"{loop}: {delivered} batches of {case.batches}"
        epochs += 1
    return 1e3 * seconds_between(start, now_ns()) / epochs


def _bounded(batches: Batches, count: int) -> Iterator[Any]:
    """At most `count` batches, because some loaders of tokens are endless."""
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number == count:
            return


def gather_ms(gather: str, case: Case) -> float:
    """Milliseconds per epoch of the gather alone, averaged over at least LEAST_ROUND_S."""
    epochs = warm_gather(gather, case)
    start, epochs_ms = now_ns(), []
    while seconds_between(start, now_ns()) < LEAST_ROUND_S:
        epochs_ms.append(1e3 * epochs.epoch_s())
    return sum(epochs_ms) / len(epochs_ms)


@cache
def warm_gather(gather: str, case: Case) -> PrefetchingGather | PlainGather:
    """The gather that a process uses in all rounds."""
    if gather == PLAIN_GATHER:
        return PlainGather(source(case), case.batch_size)
    return PrefetchingGather(tree(case))


def factors(num_rounds: int) -> list[Line]:
    """The table's lines on all workloads."""
    return [line for name, case in CASES.items() for line in factors_of(name, case, num_rounds)]


def factors_of(name: str, case: Case, num_rounds: int) -> list[Line]:
    """The table's lines on one workload."""
    optional = ("grain", "turboloader")
    rivals = [rival for rival in case.rivals if rival not in optional or find_spec(rival)]
    loops, gathers = ["FastLoader", *rivals], [GATHER, *([PLAIN_GATHER] * (case.least_plain > 0))]
    with processes([*loops, *gathers]) as call:
        calls = {loop: partial(call[loop], epoch_ms, loop, case) for loop in loops}
        calls |= {gather: partial(call[gather], gather_ms, gather, case) for gather in gathers}
        took_ms = measure_in_rounds(num_rounds, calls)
    best = min(rivals, key=lambda rival: stats.median(took_ms[rival]))
    goals = [
        (f"the best rival, {best},", best, case.least),
        ("DataLoader", "DataLoader", case.least_dataloader),
        (PLAIN_GATHER, PLAIN_GATHER, case.least_plain),
    ]
    lines = [Line(f"{name}: {loop}", figure(values, "ms")) for loop, values in took_ms.items()]
    for words, loop, least in goals:
        if least:
            ratio = ratio_by_round(took_ms[loop], took_ms["FastLoader"])
            label = f"{name}: time of {words} over FastLoader's"
            lines.append(Line(label, times(ratio), f"at least {least:g}", ratio.estimate >= least))
    share = ratio_by_round(took_ms[GATHER], took_ms["FastLoader"])
    return [*lines, Line(f"{name}: share of the gather", times(share))]
