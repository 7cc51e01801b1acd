"""Judge from a process's counters whether its threads of Python wait for the interpreter's lock.

Only the thread that has the lock runs Python, so threads that compute in Python run by turns. All
constants were chosen by hand.
"""

from __future__ import annotations

from fastloop.explain.attach.loop_usage import Fact

LEAST_HELD_SHARE, MOST_HELD_CORES = 0.85, 1.15
"""Threads of Python count as sharing the interpreter's lock only if two conditions hold. The times
in which they could run add up to at least LEAST_HELD_SHARE of the wall time. All threads of the
process together use at most MOST_HELD_CORES. The lock alone would make both numbers 1; the margins
are for work that needs no lock, and for inexact readings."""
LEAST_RUNNABLE_SHARE = 0.15
"""A thread can share the lock only if it could run for at least this share of the time."""
SHORTEST_NS, LONGEST_NS = 3e5, 2e7
"""Range of the mean time, in nanoseconds, for which a thread that shares the lock could run between
two switches. Python makes a thread give up the lock after 5 ms (sys.getswitchinterval), and tasks
of 0.8 ms in a pool of four threads give 0.4 to 0.9 ms. A thread that waits for messages switches
more often, every 0.03 to 0.3 ms."""
MOST_STARVED_SHARE, LEAST_STARVING_SHARE = 0.5, 0.5
"""A thread is starved of the lock if it could run for at most MOST_STARVED_SHARE of the time, while
another thread could run for at least LEAST_STARVING_SHARE of the time."""
LEAST_TIMED_NS = 5e7
"""Least time of making batches, in nanoseconds, from which a thread may count as starved. It is ten
times the 5 ms for which another thread may keep the lock."""


def is_lock_shared(fact: Fact) -> bool:
    """True if threads of Python seem to pass the lock to each other, or one is starved of it.

    fact: the counters of a process, from usage_probe.py.
    """
    wall_ns = fact["wall_ns"]
    # The process uses more than one core, so much of its work needs no lock.
    if fact["cpu_ns"] > MOST_HELD_CORES * wall_ns:
        return False
    sharing = [
        runs_ns
        for runs_ns, switches in fact["python"]
        if runs_ns >= LEAST_RUNNABLE_SHARE * wall_ns
        and SHORTEST_NS * switches <= runs_ns <= LONGEST_NS * switches
    ]
    is_passed_on = len(sharing) >= 2 and sum(sharing) >= LEAST_HELD_SHARE * wall_ns
    return is_passed_on or _is_starved(fact)


def _is_starved(fact: Fact) -> bool:
    """True if the thread that makes batches waits while another thread of Python has the lock.

    A thread that gives up the lock for each tensor may get it back only after 5 ms each time. It
    then runs for a small share of the time. Steps are not judged, because they may wait for a
    device.
    """
    part = fact["parts"]
    if fact["role"] != "makes" or part["wall_ns"] < LEAST_TIMED_NS:
        return False
    own_ns = part["cpu_ns"] + part["delay_ns"]
    # The other threads' CPU time counts, but not their waits for a core, which were not recorded.
    all_ns = part["delay_ns"] + part["process_ns"]
    longest_ns = max((runs_ns for runs_ns, _ in fact["python"]), default=0)
    return (
        own_ns <= MOST_STARVED_SHARE * part["wall_ns"]
        and all_ns >= LEAST_HELD_SHARE * part["wall_ns"]
        and longest_ns >= LEAST_STARVING_SHARE * fact["wall_ns"]
    )
