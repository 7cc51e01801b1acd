"""FastLoader over a file several times larger than memory, read in blocks from the disk.

The file of 4 GiB is evicted from the page cache each time, and the processes are in a memory cgroup
of 1 GiB. FastLoader with shuffle=Blocks takes turns with a plain reading of the whole file from
beginning to end. Needs root, and cgroups of version 1.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib.memory_groups import memory_group
from experiments.peers.lines import Line, figure, ratio_by_round
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.traversals import status_mib
from experiments.peers.workloads import outputs_folder
from fastloop.core.spans import now_ns, seconds_between
from fastloop.trial.page_cache import evict

MIB = 1 << 20
ROW_NBYTES = 12_288
COUNT = 4096 * MIB // ROW_NBYTES
LIMIT_MIB = 1024
READ_BYTES = 8 * MIB


def write_rows(path: Path, count: int = COUNT) -> Path:
    """Write a file of n rows of random bytes if it is missing."""
    if not path.exists():
        rows = np.lib.format.open_memmap(path, "w+", np.uint8, (count, ROW_NBYTES))
        pattern = np.random.default_rng(0).integers(0, 256, (1024, ROW_NBYTES), np.uint8)
        for start in range(0, count, len(pattern)):
            rows[start : start + len(pattern)] = pattern[: count - start]
        rows.flush()
    return path


def join_group(folder: str) -> None:
    """Move this process into the memory group."""
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))


def sequential_read_s(path: str) -> float:
    """Seconds to read the file from beginning to end, with no page of it cached."""
    evict([Path(path)])
    buffer, start = bytearray(READ_BYTES), now_ns()
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return seconds_between(start, now_ns())


def measure_epoch(path: str) -> tuple[float, float]:
    """Seconds of an epoch with a cold cache, shuffled by blocks of 12 MiB, two at a time; and the
    MiB by which the process's own memory grew."""
    from fastloop import Blocks, FastLoader

    evict([Path(path)])
    rows = np.load(path, mmap_mode="r")
    before = peak = status_mib("RssAnon")
    start, count = now_ns(), 0
    for number, batch in enumerate(FastLoader(rows, 256, Blocks(1024, 2), seed=0)):
        count += len(batch)
        if number % 16 == 0:
            peak = max(peak, status_mib("RssAnon"))
    assert count == len(rows)
    return seconds_between(start, now_ns()), peak - before


def larger_than_memory(num_rounds: int) -> list[Line]:
    """The table's lines on the file of 4 GiB."""
    return measure_file(num_rounds, write_rows(outputs_folder() / "larger.npy"))


def measure_file(num_rounds: int, path: Path, limit_mib: int = LIMIT_MIB) -> list[Line]:
    """The table's lines on this file, with the process's memory limited."""
    size_mib = path.stat().st_size / MIB
    with memory_group(limit_mib) as group, processes(["FastLoader", "reading"]) as call:
        for call_in_process in call.values():
            call_in_process(join_group, str(group))
        results: dict[str, list[Any]] = measure_in_rounds(
            num_rounds,
            {
                "FastLoader": partial(call["FastLoader"], measure_epoch, str(path)),
                "reading": partial(call["reading"], sequential_read_s, str(path)),
            },
        )
    loading_s, own_mib = zip(*results["FastLoader"], strict=True)
    ratio = ratio_by_round(results["reading"], loading_s)
    seconds = {"FastLoader": loading_s, "reading": results["reading"]}
    rates = {name: [size_mib / value for value in values] for name, values in seconds.items()}
    return [
        Line("the file, the limit", f"{size_mib:,.0f} MiB, {limit_mib:,} MiB"),
        Line("sequential reading, cold", figure(rates["reading"], "MiB/s")),
        Line("FastLoader, shuffled by blocks, cold", figure(rates["FastLoader"], "MiB/s")),
        Line(
            "of the reading's rate",
            f"{100 * ratio.estimate:.3g} [{100 * ratio.low:.3g}, {100 * ratio.high:.3g}] %",
            "at least 80 %",
            ratio.estimate >= 0.8,
        ),
        Line(
            "memory beyond the source",
            figure(own_mib, "MiB"),
            f"at most {limit_mib // 2} MiB",
            max(own_mib) <= limit_mib / 2,
        ),
    ]
