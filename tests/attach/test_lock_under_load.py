"""The interpreter's lock as a cause: threads that share it are told from threads that only lack
cores, unless the machine is too busy to tell."""

from __future__ import annotations

import numpy as np
import pytest

from fastloop.core.explanation import Cause
from fastloop.explain.attach.findings_text import describe_causes
from fastloop.explain.attach.loop_causes import LoopEvidence, find_loop_causes
from fastloop.explain.attach.loop_usage import LoopUsage
from fastloop.explain.attach.loops import Loop, share_of_parts

LOCK = "the interpreter's lock"
SECOND = 10**9


def loop_of(
    cpu: float, delay: float, runnable: float, other_cores: float, switches: int = 250
) -> Loop:
    """A second of a loop whose Dataset computes in four threads of Python.

    cpu, delay: CPU time, and waits for cores, of all its threads. runnable: time in which each of
    the four could run. switches: how often it gives up its core.
    """
    threads = [[int(runnable * SECOND), switches]] * 4
    counters = {
        "cpu_ns": int(cpu * SECOND),
        "delay_ns": int(delay * SECOND),
        "read_bytes": 0,
        "major_faults": 0,
        "minor_faults": 0,
        "system_ns": 0,
    }
    parts = {"wall_ns": SECOND, "process_ns": int(cpu * SECOND), **counters}
    fact = {"role": "makes", "wall_ns": SECOND, "python": threads, "parts": parts, **counters}
    return Loop(
        facts={"type": "DataLoader", "place": "train.py:9", "num_workers": 0, "rank": None},
        passes=(),
        waits_ns=np.full((20, 4), SECOND // 80, np.int64),
        steps_ns=np.full(20, 1000, np.int64),
        pass_of=np.zeros(20, np.int64),
        starts_ns=np.zeros(0, np.int64),
        transform_share=None,
        made=(),
        usage=LoopUsage(makes=(fact,)),
        other_cores=other_cores,
    )


def find_causes(loop: Loop) -> tuple[Cause, ...]:
    shares = share_of_parts(loop)
    return find_loop_causes(LoopEvidence(loop=loop, shares=shares, do_workers_pay=True))


@pytest.mark.parametrize(
    ("loop", "is_found"),
    [
        (loop_of(0.99, 0.02, 0.25, 0.0), [True]),
        (loop_of(0.74, 0.7, 0.36, 1.0), [True]),
        # Measured beside two busy processes on two cores: the same of threads with the lock, and of
        # threads that hash, which need no lock.
        (loop_of(0.74, 1.14, 0.43, 1.3), [None]),
        (loop_of(0.79, 1.27, 0.47, 1.2), [None]),
        (loop_of(1.9, 0.02, 0.48, 0.0), []),
        # About as measured in a pool of four threads with tasks of 0.8 ms, and in two threads that
        # wait for messages of each other; these switch every 0.1 ms.
        (loop_of(1.02, 0.3, 0.28, 0.0, switches=650), [True]),
        (loop_of(0.93, 0.02, 0.25, 0.0, switches=2500), []),
    ],
)
def test_lock_is_told_or_said_to_be_hidden_by_the_load(loop, is_found):
    locks = [each for each in find_causes(loop) if each.name == LOCK]
    assert [each.is_found for each in locks] == is_found


def test_hidden_lock_is_printed_with_the_load():
    loop = loop_of(0.74, 1.14, 0.43, 1.3)
    (lock,) = find_causes(loop)
    (line,) = describe_causes([lock])
    assert line.startswith(f"Not known: {LOCK}: 4 threads of Python in the loop's process may hold")
    assert "other programs used 1.3 of them" in line
    assert line.endswith("run attach again on a quiet machine.")
