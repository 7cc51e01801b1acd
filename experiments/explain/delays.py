"""Ways to take time, of a known amount: by waiting, or by computing with or without Python's lock.

Amounts are exact on average: what one call takes too long, the next one makes up for.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["sleep", "with_lock", "without_lock"]
BUFFER = bytes(1 << 15)
"""hashlib releases the interpreter's lock for buffers of more than 2,047 bytes."""
COUNT = 300


@dataclass
class Delay:
    """Takes so many seconds at each call: of the clock for a sleep, else of this thread's CPU."""

    kind: Kind
    seconds: float
    debt_s: float = field(default=0.0, repr=False)
    """What earlier calls have taken too long."""

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
    """Pure Python, which holds the lock."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        for _ in range(COUNT):
            pass


def spin_without_lock(seconds: float) -> None:
    """C that releases the lock while it computes."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        hashlib.sha256(BUFFER)


TAKERS: dict[Kind, tuple[Callable[[float], None], Callable[[], float]]] = {
    "sleep": (time.sleep, time.perf_counter),
    "with_lock": (spin_with_lock, time.thread_time),
    "without_lock": (spin_without_lock, time.thread_time),
}
