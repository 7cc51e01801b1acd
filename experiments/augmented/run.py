"""How fast photographs are loaded as they are trained on, beside DataLoader; see README.md."""

import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from experiments.augmented.limit import load_library, make_samples
from experiments.augmented.loops import READERS, make_loop
from experiments.augmented.photographs import write_photographs
from experiments.peers.lines import Line, figure, ratio_by_round, table, times
from experiments.peers.processes import measure_in_rounds, processes
from fastloop.core.spans import now_ns, process_cpu_ns, seconds_between

REPEATS = 4
"""Times that an epoch reads each file."""
OURS, MARKED, LIMIT = "FastLoader", "FastLoader, restart markers", "C alone"
BARS = {OURS: {"PIL": 3.5, "torchvision v2": 2.3}, MARKED: {"PIL": 4.0, "torchvision v2": 2.8}}
LIMIT_BAR = 0.9
MARKER_BLOCKS = 4
"""Blocks of 16 x 16 pixels between two restart markers."""

Paths = tuple[str, ...]


class Took(NamedTuple):
    """Milliseconds an image."""

    wall_ms: float
    cpu_ms: float
    """Of all threads of the process; its children's not."""


@cache
def warm_loop(name: str, paths: Paths) -> Iterable[Any]:
    """The loop that a process uses in all rounds."""
    return make_loop(name, paths)


def run_epoch(name: str, paths: Paths) -> None:
    for _ in warm_loop(name, paths):
        pass


def run_limit(paths: Paths) -> None:
    make_samples(load_library(), paths)


def measure_epoch(run: Callable[[Paths], None], paths: Paths) -> Took:
    """The time of an epoch."""
    start, cpu_start = now_ns(), process_cpu_ns()
    run(paths)
    took = seconds_between(start, now_ns()), seconds_between(cpu_start, process_cpu_ns())
    return Took(*(1e3 * seconds / len(paths) for seconds in took))


def measure(num_rounds: int, num_files: int, repeats: int) -> list[Line]:
    """The table's lines."""
    names = [OURS, MARKED, *READERS, LIMIT]
    with TemporaryDirectory() as folder, processes(names) as call:
        plain = tuple(write_photographs(Path(folder, "plain"), num_files) * repeats)
        blocks = {"restart_marker_blocks": MARKER_BLOCKS}
        marked = tuple(write_photographs(Path(folder, "marked"), num_files, **blocks) * repeats)
        runs: dict[str, Callable] = {name: partial(run_epoch, name) for name in (OURS, *READERS)}
        runs |= {MARKED: partial(run_epoch, OURS), LIMIT: run_limit}
        calls = {
            name: partial(
                call[name], measure_epoch, runs[name], marked if name == MARKED else plain
            )
            for name in names
        }
        took = measure_in_rounds(num_rounds, calls)
    wall_ms = {name: [one.wall_ms for one in took[name]] for name in names}
    lines = [Line(f"{name}, an image", figure(wall_ms[name], "ms")) for name in names]
    for name in (OURS, MARKED, LIMIT):
        cpu_ms = figure([one.cpu_ms for one in took[name]], "ms")
        lines.append(Line(f"{name}, an image, CPU time", cpu_ms))
    lines += [compare(wall_ms, name, ours) for ours in (OURS, MARKED) for name in READERS]
    return [*lines, compare(wall_ms, LIMIT, OURS)]


def compare(wall_ms: dict[str, list[float]], name: str, ours: str) -> Line:
    """The line of how many times faster than `name` one of our loops is."""
    ratio = ratio_by_round(wall_ms[name], wall_ms[ours])
    bar = LIMIT_BAR if name == LIMIT else BARS[ours].get(name)
    label = f"time of {name if name == LIMIT else f'DataLoader with {name}'} over {ours}'s"
    is_met = None if bar is None else ratio.estimate >= bar
    return Line(label, times(ratio), f"at least {bar:g}" if bar else "", is_met)


def main() -> None:
    """Print the table; the first argument is the number of rounds."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(table(measure(num_rounds, 300, REPEATS)))


if __name__ == "__main__":
    main()
