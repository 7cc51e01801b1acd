"""Delays of known length: by waiting, or by computing with or without Python's lock.

The length is exact on average: if a call takes too long, the next one is shorter by as much.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sleep", "with_lock", "without_lock"]
BUFFER = bytes(1 << 15)
"""Size of the hashed buffer: hashlib releases the interpreter's lock above 2,047 bytes."""
COUNT = 300


@dataclass
class Delay:
    """A delay of this many seconds per call: of wall time if it sleeps, otherwise of the thread's
    CPU time."""

    kind: Kind
    seconds: float
    debt_s: float = field(default=0.0, repr=False)
    """Seconds by which earlier calls have taken too long."""

    def __call__(self) -> None:
        if self.seconds <= 0:
            return
        take, now_s = TAKERS[self.kind]
        start_s = now_s()
        rest_s = self.seconds - self.debt_s
        if rest_s > 0:
            take(rest_s)
        self.debt_s = now_s() - start_s - rest_s


def spin_with_lock(seconds: float) -> None:
    """Compute in Python, which holds the lock."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        for _ in range(COUNT):
            pass


def spin_without_lock(seconds: float) -> None:
    """Compute in C, which releases the lock."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        hashlib.sha256(BUFFER)


TAKERS: dict[Kind, tuple[Callable[[float], None], Callable[[], float]]] = {
    "sleep": (time.sleep, time.perf_counter),
    "with_lock": (spin_with_lock, time.thread_time),
    "without_lock": (spin_without_lock, time.thread_time),
}
