"""How fast photographs are loaded as they are trained on, beside DataLoader; see README.md."""

import sys
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np

from experiments.augmented.loops import (
    BATCH_SIZE,
    MEAN,
    NUM_WORKERS,
    RATIO,
    READERS,
    SCALE,
    SIDE,
    STD,
    make_loop,
)
from experiments.augmented.photographs import write_photographs
from experiments.peers.lines import Line, figure, ratio_by_round, table, times
from experiments.peers.processes import measure_in_rounds, processes
from fastloop.core.spans import now_ns, seconds_between

REPEATS = 4
"""Times that an epoch reads each file."""
BARS = {"PIL": 3.5, "torchvision v2": 2.3}
LIMIT_BAR = 0.9
NATIVE = "native pass alone"


@cache
def warm_loop(name: str, paths: tuple[str, ...]) -> Iterable[Any]:
    """The loop that a process uses in all rounds."""
    return make_loop(name, paths)


def epoch_ms(name: str, paths: tuple[str, ...]) -> float:
    """Milliseconds an image."""
    loop, start = warm_loop(name, paths), now_ns()
    for _ in loop:
        pass
    return 1e3 * seconds_between(start, now_ns()) / len(paths)


def native_ms(paths: tuple[str, ...]) -> float:
    """Milliseconds an image of the native pass, into the same memory again and again."""
    start = now_ns()
    threads = [Thread(target=make_all, args=(paths[k::NUM_WORKERS],)) for k in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1e3 * seconds_between(start, now_ns()) / len(paths)


def make_all(paths: tuple[str, ...]) -> None:
    from fastloop import Images, RandomResizedCrop

    crop = RandomResizedCrop(SIDE, SCALE, RATIO)
    images = Images(paths, crop=crop, flip=0.5, normalize=(MEAN, STD), decoder="native")
    out = np.empty((BATCH_SIZE, images.spec.nbytes), np.uint8)
    for start in range(0, len(paths), BATCH_SIZE):
        indices = np.arange(start, min(start + BATCH_SIZE, len(paths)))
        images.fill(indices, out[: len(indices)])


def measure(num_rounds: int, num_files: int, repeats: int) -> list[Line]:
    """The table's lines."""
    names = ["FastLoader", *READERS]
    with TemporaryDirectory() as folder, processes([*names, NATIVE]) as call:
        paths = tuple(write_photographs(Path(folder), num_files) * repeats)
        calls = {name: partial(call[name], epoch_ms, name, paths) for name in names}
        calls[NATIVE] = partial(call[NATIVE], native_ms, paths)
        took_ms = measure_in_rounds(num_rounds, calls)
    lines = [Line(f"{name}, an image", figure(took_ms[name], "ms")) for name in took_ms]
    for name in READERS:
        ratio, bar = ratio_by_round(took_ms[name], took_ms["FastLoader"]), BARS.get(name)
        is_met = None if bar is None else ratio.estimate >= bar
        label = f"time of DataLoader with {name} over FastLoader's"
        lines.append(Line(label, times(ratio), f"at least {bar:g}" if bar else "", is_met))
    share = ratio_by_round(took_ms[NATIVE], took_ms["FastLoader"])
    bar = f"at least {LIMIT_BAR:g}"
    met = share.estimate >= LIMIT_BAR
    return [*lines, Line(f"{NATIVE} over FastLoader", times(share), bar, met)]


def main() -> None:
    """Print the table; the first argument is the number of rounds."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(table(measure(num_rounds, 300, REPEATS)))


if __name__ == "__main__":
    main()
