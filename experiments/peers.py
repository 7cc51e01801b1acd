"""What a traversal can't say of FastLoader: the bars of peers.md that are about something else.

    python experiments/peers.py waits|memory|start|neighbour|first [rounds]

Every loader is in a process of its own, which lives through all rounds and is asked in turn; what
one gives is the median over rounds, with its 95 % interval. Nothing else should run beside it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import peers_parts as parts
from peers_data import Jpegs
from peers_parts import Files, Workload

from fastloop import stats
from fastloop.schedule import rounds

T = TypeVar("T")
ROUNDS = 10
OUTPUTS = Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs"))
A = Workload(60_000, (1, 28, 28), "float32", 256)
B = Workload(60_000, (1, 28, 28), "uint8", 256)
C = Jpegs(root=str(OUTPUTS / "data"), count=4000, crop=(256, 256), size=(224, 224))
D = Workload(10_240, (3, 224, 224), "uint8", 256, "peers-d.npy")
STARTED = 10**9


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    what: str
    figure: str
    bar: str = ""
    met: bool | None = None
    """None: there is no bar for it."""


def table(lines: Sequence[Line]) -> str:
    """Markdown."""
    words = {True: "met", False: "not met", None: ""}
    shown = [f"| {one.what} | {one.figure} | {one.bar} | {words[one.met]} |" for one in lines]
    return "\n".join(["| | median [95 %] | bar | |", "|---|---:|---|---|", *shown])


def figure(values: Sequence[float], unit: str) -> str:
    found = stats.interval(values)
    return f"{stats.median(values):.3g}{_within(found)} {unit}"


def against(new: Sequence[float], base: Sequence[float]) -> stats.Ratio:
    """The ratio over paired rounds; without an interval where rounds are too few for one."""
    if found := stats.ratio(new, base):
        return found
    estimate = stats.median([a / b for a, b in zip(new, base, strict=True)])
    return stats.Ratio(estimate=estimate, low=estimate, high=estimate, p_value=1.0)


def times(ratio: stats.Ratio) -> str:
    """With its interval."""
    return f"x {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def percent(ratio: stats.Ratio) -> str:
    """How much more than 1."""
    low, middle, high = (
        f"{100 * (one - 1):.2g}" for one in (ratio.low, ratio.estimate, ratio.high)
    )
    return f"{middle} [{low}, {high}] %"


@contextmanager
def processes(names: Sequence[Any]) -> Iterator[dict[Any, Callable[..., Any]]]:
    """For each name a function that calls another one in the name's own process."""
    with ExitStack() as stack:
        yield {name: _asked(stack) for name in names}


def in_rounds(number: int, asked: Mapping[Any, Callable[[], T]]) -> dict[Any, list[T]]:
    """What each gives, round by round, after one that is not counted."""
    names, found = list(asked), {name: [] for name in asked}
    for ask in asked.values():
        ask()
    for places in rounds([number] * len(names)):
        for name in (names[place] for place in places):
            found[name].append(asked[name]())
    return found


def waits(number: int) -> list[Line]:
    """What the loop takes longer with a loader than with batches that are there already."""
    lines = []
    for name, workload, step_ms, bar in (("A", A, 1.0, 0.03), ("D", stored(D), 12.0, 0.06)):
        loaders = ("", *parts.LOADERS)
        with processes(loaders) as call:
            width = call[""](parts.width_for, workload, step_ms)
            asked = {
                one: partial(call[one], parts.stepped, one, workload, width) for one in loaders
            }
            took = in_rounds(number, asked)
        lines += _waited(name, took, bar)
    return lines


def _waited(name: str, took: dict[str, list[parts.Stepped]], bar: float) -> list[Line]:
    step = stats.median([one.whole for one in took[""]])
    whole = {one: [each.whole for each in found] for one, found in took.items()}
    inside = {one: [100 * each.waiting / step for each in took[one]] for one in parts.LOADERS}
    ours, others = (stats.median(inside[one]) for one in parts.LOADERS)
    slower = against(whole["FastLoader"], whole[""])
    most, tenth = f"at most {100 * bar:g} %", 100 * ours / others
    lines = [
        Line(f"{name}: step on resident batches", figure(whole[""], "ms")),
        Line(
            f"{name}: FastLoader, in next()",
            figure(inside["FastLoader"], "% of the step"),
            most,
            ours <= 100 * bar,
        ),
        Line(f"{name}: DataLoader, the same", figure(inside["DataLoader"], "% of the step")),
        Line(f"{name}: the one of the other", f"{tenth:.2g} %", "at most 10 %", tenth <= 10),
        Line(
            f"{name}: FastLoader, the whole loop's more than the step",
            percent(slower),
            most,
            slower.estimate - 1 <= bar,
        ),
    ]
    more = percent(against(whole["DataLoader"], whole[""]))
    return [*lines, Line(f"{name}: DataLoader, the same", more)]


def memory(number: int) -> list[Line]:
    """Rounds are fresh processes here."""
    cases: dict[str, Any] = {"A": A, "B": B, "D": stored(D)}
    C.fetch()
    cases["C"] = Files(str(C.photos.folder), C.size, C.count, 64)
    times = 10, 50  # of fewer the blocks are smaller, and not all of the buffers are ever used
    many = {f"B, {one} x as many": replace(B, count=one * B.count) for one in times}
    cases |= many
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(min(number, 5)):
        for name, workload in cases.items():
            with processes([name]) as call:
                found[name].append(call[name](parts.private_mib, workload, 2))
    lines = [
        Line(name, figure(values, "MiB"), "at most 250 MB", stats.median(values) * 1.048576 <= 250)
        for name, values in found.items()
    ]
    fewer, more = (stats.median(found[name]) for name in many)
    grown = (more - fewer) * parts.MIB / (B.count * (times[1] - times[0]))
    what = f"growth from {times[0]} x to {times[1]} x"
    return [*lines, Line(what, f"{grown:.2g} bytes a sample", "independent", grown < 1)]


def start(number: int) -> list[Line]:
    """Rounds are fresh processes here."""
    what = f"{STARTED:,} samples, shuffle=Blocks: to the first batch"
    path = OUTPUTS / "peers-start.bin"
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(8 * STARTED)  # nothing of it is on the disk
    found = []
    try:
        for _ in range(number):
            with processes([""]) as call:
                found.append(call[""](parts.start_of, STARTED, str(path)))
    finally:
        path.unlink()
    seconds, mib = zip(*found, strict=True)
    return [
        Line(what, figure(seconds, "s"), "under 1 s", stats.median(seconds) < 1),
        Line("memory for it", figure(mib, "MiB"), "100 MB", stats.median(mib) * 1.048576 <= 100),
    ]


def neighbour(number: int) -> list[Line]:
    cases = [(loader, busy) for loader in parts.LOADERS for busy in (False, True)]
    with processes(list(parts.LOADERS)) as call:
        asked = {
            (loader, busy): partial(call[loader], parts.beside_a_neighbour_s, loader, A, 10, busy)
            for loader, busy in cases
        }
        took = in_rounds(number, asked)
    slower = {one: against(took[one, True], took[one, False]) for one in parts.LOADERS}
    rate = {key: [10 * A.count / one for one in values] for key, values in took.items()}
    words = {False: "alone", True: "beside a busy process"}
    told = [
        Line(f"{loader}, {words[busy]}", figure(rate[loader, busy], "samples/s"))
        for loader, busy in cases
    ]
    told += [Line(f"{name}'s slowdown", times(ratio)) for name, ratio in slower.items()]
    ours, theirs = (one.estimate for one in slower.values())
    return [
        *told,
        Line("one over the other", f"x {ours / theirs:.2f}", "at most 1.25", ours / theirs <= 1.25),
    ]


def first(number: int) -> list[Line]:
    lines = []
    for name, workload in {"A": A, "D": stored(D)}.items():
        with processes([name]) as call:
            call[name](parts.edges, workload)
            found = [call[name](parts.edges, workload) for _ in range(number)]
        first_ms, gap_ms, batch_ms = ([getattr(one, key) for one in found] for key in EDGES)
        most = max(1.0, stats.median(batch_ms))
        lines += [
            Line(
                f"{name}: first batch after iter()",
                figure(first_ms, "ms"),
                "at most 20 ms",
                stats.median(first_ms) <= 20,
            ),
            Line(f"{name}: between batches", figure(batch_ms, "ms")),
            Line(
                f"{name}: gap between epochs",
                figure(gap_ms, "ms"),
                f"at most {most:.3g} ms",
                stats.median(gap_ms) <= most,
            ),
        ]
    return lines


EDGES = ("first", "gap", "batch")
PARTS = {one.__name__: one for one in (waits, memory, start, neighbour, first)}


def stored(workload: Workload) -> Workload:
    """The same with its file, which is written where it is missing."""
    path = OUTPUTS / f"{workload.count}-{workload.file}"
    made = replace(workload, file=str(path))
    if not path.exists():
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        made.write()
    return made


def _asked(stack: ExitStack) -> Callable[..., Any]:
    pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
    return lambda function, *arguments: pool.submit(function, *arguments).result()


def _within(found: tuple[float, float] | None) -> str:
    return f" [{found[0]:.3g}, {found[1]:.3g}]" if found else ""


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in PARTS:
        raise SystemExit(f"one of {', '.join(PARTS)}, and how many rounds")
    print(table(PARTS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)))
