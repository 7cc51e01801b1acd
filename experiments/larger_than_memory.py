"""How fast does FastLoader read a file several times larger than memory, in blocks, from the disk?

    python experiments/larger_than_memory.py [rounds]

A file of 4 GiB, out of the page cache each time, in a memory cgroup of 1 GiB: FastLoader with
shuffle=Blocks, and beside it the plainest reading of the whole file from its beginning to its end,
in rounds. Needs to be root, and cgroups of version 1.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from memory_groups import memory_group
from peers import Line, against, figure, in_rounds, processes, table
from peers_parts import told_mib

from fastloop.page_cache import evict
from fastloop.spans import now_ns, seconds_between

ROUNDS = 5
OUTPUTS = Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs"))
MIB = 1 << 20
ROW_NBYTES = 12_288
COUNT = 4096 * MIB // ROW_NBYTES
LIMIT_MIB = 1024
READ_BYTES = 8 * MIB


def written(path: Path, count: int = COUNT) -> Path:
    """A file of that many rows of random bytes."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.lib.format.open_memmap(path, "w+", np.uint8, (count, ROW_NBYTES))
        some = np.random.default_rng(0).integers(0, 256, (1024, ROW_NBYTES), np.uint8)
        for start in range(0, count, len(some)):
            rows[start : start + len(some)] = some[: count - start]
        rows.flush()
    return path


def join(group: str) -> None:
    """This process is a member from now on."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))


def read_s(path: str) -> float:
    """Seconds of reading it from its beginning to its end, cold."""
    evict([Path(path)])
    buffer, start = bytearray(READ_BYTES), now_ns()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return seconds_between(start, now_ns())


def loaded(path: str) -> tuple[float, float]:
    """Seconds of an epoch of it, cold and shuffled by blocks of 12 MiB, two at a time; and the MiB
    that the process had of its own meanwhile above what it had before."""
    from fastloop import Blocks, FastLoader

    evict([Path(path)])
    rows = np.load(path, mmap_mode="r")
    before = peak = told_mib("RssAnon")
    start, count = now_ns(), 0
    for number, batch in enumerate(FastLoader(rows, 256, Blocks(1024, 2))):
        count += len(batch)
        if number % 16 == 0:
            peak = max(peak, told_mib("RssAnon"))
    assert count == len(rows)
    return seconds_between(start, now_ns()), peak - before


def larger(number: int, path: Path, limit_mib: int = LIMIT_MIB) -> list[Line]:
    size_mib = path.stat().st_size / MIB
    with memory_group(limit_mib) as group, processes(["FastLoader", "reading"]) as call:
        for ask in call.values():
            ask(join, str(group))
        found: dict[str, list[Any]] = in_rounds(
            number,
            {
                "FastLoader": partial(call["FastLoader"], loaded, str(path)),
                "reading": partial(call["reading"], read_s, str(path)),
            },
        )
    loading, own_mib = zip(*found["FastLoader"], strict=True)
    took = found | {"FastLoader": loading}
    ratio = against(took["reading"], took["FastLoader"])
    rates = {name: [size_mib / one for one in values] for name, values in took.items()}
    return [
        Line("the file, the limit", f"{size_mib:,.0f} MiB, {limit_mib:,} MiB"),
        Line("reading it in its order, cold", figure(rates["reading"], "MiB/s")),
        Line("FastLoader, shuffled by blocks, cold", figure(rates["FastLoader"], "MiB/s")),
        Line(
            "of the reading's rate",
            f"{100 * ratio.estimate:.3g} [{100 * ratio.low:.3g}, {100 * ratio.high:.3g}] %",
            "at least 80 %",
            ratio.estimate >= 0.8,
        ),
        Line(
            "memory of its own for it",
            figure(own_mib, "MiB"),
            f"at most {limit_mib // 2} MiB",
            max(own_mib) <= limit_mib / 2,
        ),
    ]


if __name__ == "__main__":
    made = written(OUTPUTS / "larger.npy")
    print(table(larger(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, made)))
