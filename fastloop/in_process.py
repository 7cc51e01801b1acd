"""Loaders of one's own, measured in this process: `fastloop.bench(loader)`, and compared:
`fastloop.bench_all({"a": a, "b": b})`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fastloop import flags, stats
from fastloop.benchmarks.traversal import read
from fastloop.digest import difference, digest, epoch_hashes, expected, row_nbytes
from fastloop.environment import resolve_device
from fastloop.own_loader import epochs_of
from fastloop.placements.recursive import Recursive
from fastloop.schedule import rounds
from fastloop.spans import Spans
from fastloop.types import Epochs, Invalid, Tree
from fastloop.window import drain, instrumented, timed
from fastloop.yardstick import limit_rows_per_s

Loader = Iterable[Tree] | Callable[[int], Iterable[Tree]]
"""Something to iterate over once an epoch (`set_epoch` of it, of its sampler or of its dataset is
called), or a function from the number of an epoch to its batches."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What `bench` has measured; print it for a few lines."""

    seconds: list[float]
    """Of every trial."""
    epochs: int
    """In one trial."""
    samples: int
    """Delivered in one epoch."""
    device: str
    wait_s: list[float]
    """What the loop waited for each batch of one further epoch, iter() in the first."""
    epoch_s: float
    """Length of that epoch."""
    limit_samples_per_s: float | None
    """What this machine can gather from memory; None with a step of one's own."""
    flags: list[str]

    @property
    def samples_per_s(self) -> float:
        """Median over trials."""
        return self.epochs * self.samples / stats.median(self.seconds)

    @property
    def samples_per_s_interval(self) -> tuple[float, float] | None:
        """95 %, of that median; None below five trials."""
        found = stats.interval(self.seconds)
        delivered = self.epochs * self.samples
        return (delivered / found[1], delivered / found[0]) if found else None

    @property
    def first_batch_s(self) -> float:
        """Seconds from iter() to the first batch."""
        return self.wait_s[0]

    @property
    def wait_fraction(self) -> float:
        """Share of the further epoch that the loop waited for batches."""
        return sum(self.wait_s) / self.epoch_s

    @property
    def limit_fraction(self) -> float | None:
        """Share of what this machine can do; None with a step of one's own."""
        limit = self.limit_samples_per_s
        return None if limit is None else self.samples_per_s / limit

    def __str__(self) -> str:
        waits = [f"{1e3 * stats.percentile(self.wait_s, p):.3g}" for p in (50, 95, 99)]
        share = (
            "" if self.limit_fraction is None else f", {stats.percent(self.limit_fraction)} % of"
        )
        limit = f"{share} what this machine can gather from memory" if share else ""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        lines = [
            f"{self.samples:,} samples in {len(self.wait_s):,} batches, {len(self.seconds)} trials "
            f"of {epochs} each, device {self.device}",
            f"{stats.median(self.seconds):.4g} s a trial {_bounds(self.seconds)}",
            f"{self.samples_per_s:,.0f} samples/s {_whole(self.samples_per_s_interval)}{limit}",
            f"waits: first batch {1e3 * self.first_batch_s:.3g} ms, p50 {waits[0]}, p95 {waits[1]},"
            f" p99 {waits[2]} ms; {100 * self.wait_fraction:.0f} % of an epoch",
            *self.flags,
        ]
        return "\n".join(line for one in lines for line in textwrap.wrap(one, 80))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What `bench_all` has measured; print it for the table."""

    seconds: dict[str, list[float]]
    """Of every trial, by loader, in the order of the rounds."""
    rounds: list[list[str]]
    """The order of the loaders in each round."""
    samples: int
    """Delivered in one epoch by each loader."""
    ranking: stats.Ranking
    ratios: dict[str, stats.Ratio | None]
    """Seconds to the first loader's seconds, paired by round; the first has none."""
    flags: dict[str, list[str]]

    def __str__(self) -> str:
        return "\n".join([_line(self, name) for name in self.ranking.order] + _notes(self))


def bench(
    loader: Loader,
    step: Callable[[Tree], Any] | None = None,
    epochs: int = 1,
    trials: int = 20,
    device: str = "auto",
) -> BenchResult:
    """Seconds of `epochs` epochs of a loader, `trials` times, and where they go.

    `step` is called with every batch as the loader gave it; without one, a batch is moved to the
    device, or read where it is there already. One epoch comes before, which is counted, and one
    that warms up; one more after the trials tells the waits. All run in this process:
    `python -m fastloop.run loader._target_=…` gives each trial one of its own.

    Raises Invalid for batches that are no trees of tensors of one length, for an epoch without any
    and for one whose samples come again and again without an end; ValueError for fewer than one
    trial or epoch, and for a bare iterator, which has one epoch only.
    """
    if min(trials, epochs) < 1:
        raise ValueError(f"trials={trials}, epochs={epochs}: at least one of each")
    target = resolve_device(device)
    consume, each = step or _delivery(target), _epochs(loader)
    hashes, leaves = epoch_hashes(each(0), None)
    drain(each, consume, 0, target)
    seconds = [timed(each, consume, epochs, target).seconds for _ in range(trials)]
    spans = Spans()
    epoch_s = instrumented(each, consume, spans, target).seconds
    limit = None
    if step is None:
        size = -(-len(hashes) // len(spans.seconds("wait")))
        reads = target.type == "cpu"
        limit = limit_rows_per_s(
            len(hashes), row_nbytes(leaves), size, target, reads, stats.median(seconds)
        )
    return BenchResult(
        seconds=seconds,
        epochs=epochs,
        samples=len(hashes),
        device=str(target),
        wait_s=spans.seconds("wait"),
        epoch_s=epoch_s,
        limit_samples_per_s=limit,
        flags=flags.of_trials(seconds=seconds),
    )


def bench_all(
    loaders: Mapping[str, Loader],
    step: Callable[[Tree], Any] | None = None,
    trials: int = 20,
    epochs: int = 1,
    device: str = "auto",
    same_data: bool = True,
) -> Bench:
    """Seconds of `epochs` epochs of each loader, `trials` times in interleaved rounds, and ranks.

    `step` is called with every batch as the loader gave it; without one, a batch is moved to the
    device, or read where it is there already. One epoch of each loader comes before: it warms up
    and is digested. All trials run in this process: `python -m fastloop.run` gives each one of its
    own. Raises Invalid where the loaders do not deliver the same samples, unless same_data is False
    (random transforms), when only their number must agree; ValueError for fewer than one loader,
    trial or epoch, and for a bare iterator, which has one epoch only.
    """
    if min(len(loaders), trials, epochs) < 1:
        given = f"{len(loaders)} loaders, trials={trials}, epochs={epochs}"
        raise ValueError(f"{given}: at least one of each")
    target = resolve_device(device)
    consume = step or _delivery(target)
    opened = {name: _epochs(loader) for name, loader in loaders.items()}
    samples = _check(opened, same_data)
    for each in opened.values():
        drain(each, consume, 0, target)
    names = list(opened)
    order = [[names[place] for place in one] for one in rounds([trials] * len(names))]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for one in order:
        for name in one:
            seconds[name].append(timed(opened[name], consume, epochs, target).seconds)
    return _judged(seconds, order, samples)


def _judged(seconds: dict[str, list[float]], order: list[list[str]], samples: int) -> Bench:
    base, *others = seconds
    return Bench(
        seconds=seconds,
        rounds=order,
        samples=samples,
        ranking=stats.ranking(seconds),
        ratios={name: stats.ratio(seconds[name], seconds[base]) for name in others},
        flags={name: flags.of_trials(seconds=one) for name, one in seconds.items()},
    )


def _epochs(loader: Loader) -> Epochs:
    if isinstance(loader, Iterator):
        raise ValueError("an iterator has one epoch only; give what it was made from")
    if isinstance(loader, Iterable) or hasattr(loader, "__getitem__"):
        return epochs_of(loader)  # pyright: ignore[reportArgumentType] - iter() takes both
    if not callable(loader):
        raise ValueError(f"a loader is something to iterate over, not {type(loader).__name__}")
    return loader


def _delivery(device: torch.device) -> Callable[[Tree], Any]:
    return read if device.type == "cpu" else Recursive(non_blocking=False).to(device)


def _check(opened: Mapping[str, Epochs], same_data: bool) -> int:
    """How many samples an epoch has; raises Invalid where the loaders differ."""
    first, *others = opened
    wanted = expected(*epoch_hashes(opened[first](0), None))
    for name in others:
        try:
            got = digest(opened[name](0), None, at_most=wanted.count)
        except Invalid as why:
            raise Invalid(f"{name} does not deliver what {first} does: {why}") from why
        wrong = difference(wanted, got)
        if wrong and (same_data or got.count != wanted.count):
            hint = "" if got.count != wanted.count else "; same_data=False allows it"
            raise Invalid(f"{name} does not deliver what {first} does: {wrong}{hint}")
    return wanted.count


def _line(bench: Bench, name: str) -> str:
    own = bench.seconds[name]
    rank = bench.ranking.ranks.get(name, "?")
    told = f"{name:<20} {rank:>3}  {stats.median(own):9.4f} s  {_spread(own)}"
    ratio = bench.ratios.get(name)
    if ratio is None:
        return told
    return f"{told}  x {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _spread(seconds: list[float]) -> str:
    found = stats.interval(seconds)
    return f"[{found[0]:.4f}, {found[1]:.4f}]" if found else " " * 16


def _bounds(seconds: list[float]) -> str:
    found = stats.interval(seconds)
    return f"[{found[0]:.4g}, {found[1]:.4g}]" if found else ""


def _whole(interval: tuple[float, float] | None) -> str:
    return f"[{interval[0]:,.0f}, {interval[1]:,.0f}]" if interval else ""


def _notes(bench: Bench) -> list[str]:
    said = f"undetermined: {bench.ranking.undetermined}" if bench.ranking.undetermined else ""
    meaning = "rank, median seconds of a trial [95 %], times the first loader's [95 %]"
    told = [
        said,
        meaning,
        *(f"{name}: {one}" for name, all_ in bench.flags.items() for one in all_),
    ]
    return ["", *(line for one in told if one for line in textwrap.wrap(one, 80))]
