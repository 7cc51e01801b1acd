"""How much faster than DataLoader do FastLoader and others load augmented photographs? See
README.md."""

import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from experiments.augmented.limit import load_library, make_samples
from experiments.augmented.loops import READERS, make_loop
from experiments.augmented.other_loops import OTHER_LOOPS
from experiments.augmented.photographs import write_photographs
from experiments.peers.lines import Line, figure, ratio_by_round, table, times
from experiments.peers.processes import measure_in_rounds, processes
from fastloop import StoredImages, write_store
from fastloop.core.spans import now_ns, process_cpu_ns, seconds_between

REPEATS = 4
"""How often an epoch reads each file."""
OURS, MARKED, LIMIT = "FastLoader", "FastLoader, restart markers", "C alone"
BARS = {
    OURS: {"PIL": 3.5, "torchvision v2": 2.3, "SPDL": 2.3, "FFCV": 3.0, LIMIT: 0.9},
    MARKED: {"PIL": 4.0, "torchvision v2": 2.8},
}
RIVALS = [*READERS, *OTHER_LOOPS]

Source = tuple[str, ...] | str
"""The paths of the files, or the folder of a store."""


class Took(NamedTuple):
    """Milliseconds per image."""

    wall_ms: float
    cpu_ms: float
    """CPU time of all threads of the process, without that of its children."""


@cache
def warm_loop(name: str, source: Source) -> Iterable[Any]:
    """The loop that a process uses in all rounds."""
    return OTHER_LOOPS[name](source) if name in OTHER_LOOPS else make_loop(name, source)


def run_epoch(name: str, source: Source) -> int:
    """Run an epoch, and return the clock reading in ns at its last batch. SPDL's threads take a
    while to end after that."""
    end = 0
    for _ in warm_loop(name, source):
        end = now_ns()
    return end


def run_limit(paths: tuple[str, ...]) -> int:
    """Make all samples, and return the clock reading in ns at their end."""
    make_samples(load_library(), paths)
    return now_ns()


def measure_epoch(run: Callable[[], int], num_images: int) -> Took:
    """The time of an epoch of this many images."""
    start, cpu_start = now_ns(), process_cpu_ns()
    took = seconds_between(start, run()), seconds_between(cpu_start, process_cpu_ns())
    return Took(*(1e3 * seconds / num_images for seconds in took))


def measure(num_rounds: int, num_files: int, repeats: int) -> list[Line]:
    """The table's lines."""
    names = [OURS, MARKED, *RIVALS, LIMIT]
    with TemporaryDirectory() as folder, processes(names) as call:
        paths = tuple(write_photographs(Path(folder, "files"), num_files) * repeats)
        stored = write_store(list(paths), Path(folder, "store"), images="jpeg")
        runs: dict[str, Callable] = {
            name: partial(run_epoch, name, paths) for name in (OURS, *RIVALS)
        }
        runs[MARKED] = partial(run_epoch, MARKED, str(stored.root))
        runs[LIMIT] = partial(run_limit, paths)
        calls = {name: partial(call[name], measure_epoch, runs[name], len(paths)) for name in names}
        took = measure_in_rounds(num_rounds, calls)
    wall_ms = {name: [one.wall_ms for one in took[name]] for name in names}
    lines = [Line(f"{name}, an image", figure(wall_ms[name], "ms")) for name in names]
    for name in (OURS, MARKED, LIMIT):
        cpu_ms = figure([one.cpu_ms for one in took[name]], "ms")
        lines.append(Line(f"{name}, an image, CPU time", cpu_ms))
    pairs = [(name, OURS) for name in (*RIVALS, LIMIT)] + [(name, MARKED) for name in RIVALS]
    lines += [compare(wall_ms, name, ours) for name, ours in pairs]
    return [*lines, *describe(stored)]


def describe(stored: StoredImages) -> list[Line]:
    """The table's lines on restart markers: the time that they save, and the bytes that they
    add."""
    epochs = stored.epochs_to_pay_back
    saved = "" if stored.saved_ms is None else f"{stored.saved_ms:.3f} ms"
    return [
        Line("write_store, an image", f"{1e3 * stored.seconds / stored.num_images:.2f} ms"),
        Line(
            "write_store, an image, CPU time",
            f"{1e3 * stored.cpu_seconds / stored.num_images:.2f} ms",
        ),
        Line(
            "bytes of its store over the files'", f"{stored.bytes_after / stored.bytes_before:.3f}"
        ),
        Line("CPU time that it saves a crop, as it says", saved),
        Line("epochs after which it has paid", "never" if epochs is None else f"{epochs:.0f}"),
    ]


def compare(wall_ms: dict[str, list[float]], name: str, ours: str) -> Line:
    """The line with the factor by which one of our loops is faster than the loop `name`."""
    ratio, bar = ratio_by_round(wall_ms[name], wall_ms[ours]), BARS[ours].get(name)
    label = f"time of {f'DataLoader with {name}' if name in READERS else name} over that of {ours}"
    is_met = None if bar is None else ratio.estimate >= bar
    return Line(label, times(ratio), f"at least {bar:g}" if bar else "", is_met)


def main() -> None:
    """Measure, and print the table. The first argument is the number of rounds."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(table(measure(num_rounds, 300, REPEATS)))


if __name__ == "__main__":
    main()
