"""Loaders of one's own, compared in this process: `fastloop.bench_all({"a": a, "b": b})`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import optree
import torch

from fastloop import flags, stats
from fastloop.benchmarks.traversal import read
from fastloop.digest import Digest, difference, digest
from fastloop.environment import resolve_device
from fastloop.schedule import rounds
from fastloop.types import Epochs, Invalid, Tree
from fastloop.window import drain, timed

Loader = Iterable[Tree] | Callable[[int], Iterable[Tree]]
"""Something to iterate over once an epoch (`set_epoch` of it or of its sampler is called), or a
function from the number of an epoch to its batches."""


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
    consume = step or partial(_deliver, target)
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
    if callable(loader) and not hasattr(loader, "__iter__"):
        return loader

    if isinstance(loader, Iterator):
        raise ValueError("an iterator has one epoch only; give what it was made from")
    told = [getattr(one, "set_epoch", None) for one in (loader, getattr(loader, "sampler", None))]

    def epochs(number: int) -> Iterable[Tree]:
        for set_epoch in told:
            if set_epoch:
                set_epoch(number)
        return loader  # pyright: ignore[reportReturnType]

    return epochs


def _deliver(device: torch.device, batch: Tree) -> None:
    if device.type == "cpu":
        read(batch)
    else:
        optree.tree_map(lambda leaf: leaf.to(device), batch)


def _check(opened: Mapping[str, Epochs], same_data: bool) -> int:
    """How many samples an epoch has; raises Invalid where the loaders differ."""
    seen: dict[str, Digest] = {name: digest(one(0), None) for name, one in opened.items()}
    (first, wanted), *others = seen.items()
    for name, got in others:
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


def _notes(bench: Bench) -> list[str]:
    said = f"undetermined: {bench.ranking.undetermined}" if bench.ranking.undetermined else ""
    meaning = "rank, median seconds of a trial [95 %], times the first loader's [95 %]"
    told = [
        said,
        meaning,
        *(f"{name}: {one}" for name, all_ in bench.flags.items() for one in all_),
    ]
    return ["", *(line for one in told if one for line in textwrap.wrap(one, 80))]
