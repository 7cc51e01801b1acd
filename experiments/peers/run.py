"""Figures of FastLoader that no traversal gives: waits, memory, start-up, a busy neighbour, growth.

    python -m experiments.peers.run <part> [rounds]

The parts are waits, memory, start, neighbour, first, growth, integers, factors and
larger_than_memory; their bars are those of README.md. Every loader has a process of its own, which
lives through all rounds and is called in turn; figures are medians over rounds with their 95 %
intervals. Nothing else should run on the machine.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from experiments.peers import traversals
from experiments.peers.bare_integers import integers
from experiments.peers.factors import factors
from experiments.peers.growth import growth
from experiments.peers.larger_than_memory import larger_than_memory
from experiments.peers.lines import Line, figure, table
from experiments.peers.processes import processes
from experiments.peers.waits_and_start import first, neighbour, start, waits
from experiments.peers.workloads import (
    MAPPED,
    NORMALIZED,
    ROWS,
    jpeg_files,
    write_file,
)
from fastloop.core import stats

ROUNDS = 10
MIB = 2**20


def memory(num_rounds: int) -> list[Line]:
    """The lines on memory, from fresh processes in at most five rounds."""
    # With fewer samples blocks are smaller, and some buffers are never used.
    factors = 10, 50
    larger = {
        f"normalized, {factor} x as many": replace(NORMALIZED, count=factor * NORMALIZED.count)
        for factor in factors
    }
    cases: dict[str, Any] = {
        "rows": ROWS,
        "normalized": NORMALIZED,
        "mapped": write_file(MAPPED),
        "jpeg": jpeg_files(),
        **larger,
    }
    mib: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(min(num_rounds, 5)):
        for name, workload in cases.items():
            with processes([name]) as call:
                mib[name].append(call[name](traversals.private_mib, workload, 2))
    lines = [
        Line(name, figure(values, "MiB"), "at most 250 MB", stats.median(values) * 1.048576 <= 250)
        for name, values in mib.items()
    ]
    fewer, more = (stats.median(mib[name]) for name in larger)
    growth_nbytes = (more - fewer) * MIB / (NORMALIZED.count * (factors[1] - factors[0]))
    label = f"growth from {factors[0]} x to {factors[1]} x"
    line = Line(label, f"{growth_nbytes:.2g} bytes a sample", "independent", growth_nbytes < 1)
    return [*lines, line]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    "waits": waits,
    "memory": memory,
    "start": start,
    "neighbour": neighbour,
    "first": first,
    "growth": growth,
    "integers": integers,
    "factors": factors,
    "larger_than_memory": larger_than_memory,
}


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in PARTS:
        raise SystemExit(f"usage: python -m experiments.peers.run {'|'.join(PARTS)} [rounds]")
    print(table(PARTS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)))
