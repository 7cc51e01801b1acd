"""Turns at the global generators, for loops that run in several threads of a program.

Only one loop at a time may seed the generators. Loops that only watch them, as their samples are
not expected to draw, do so at the same time. FastLoader's own draws from them, such as that of an
order's seed, have turns of the same kind: loops that watch then know that it may have been these.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

PATIENCE_S = 5.0
"""The longest that a loop waits for its turn. Samples of one loop may wait for another loop, which
would then wait for ever."""
GAVE_UP = (
    "a loop has waited {seconds:g} s for the samples of a loop in another thread: from now on "
    "their draws from the global generators of torch, numpy and random are not kept apart"
)


class _Turns:
    """The turns of this process. All fields are read and written under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.freed = threading.Condition(self.lock)
        self.is_seeding = False
        self.num_watching = 0
        self.num_begun = 0
        """Number of turns so far."""
        self.num_to_seed = 0
        """Number of threads that wait for a turn to seed; no other begins to watch meanwhile."""
        self.num_waiting = 0
        self.has_given_up = False

    def wait(self, seeds: bool) -> bool:
        """Wait for a turn; False if there is none, as one thread has waited in vain."""

        def is_free() -> bool:
            return not self.is_seeding and not (self.num_watching if seeds else self.num_to_seed)

        if is_free():
            return True
        if self.has_given_up:
            return False
        self.num_waiting += 1
        self.num_to_seed += seeds
        try:
            if self.freed.wait_for(is_free, PATIENCE_S):
                return True
        finally:
            self.num_waiting -= 1
            self.num_to_seed -= seeds
            self.freed.notify_all()
        self.has_given_up = True
        return False


class _Own(threading.local):
    """The turns of a thread, of which an inner one is a part of the outer one."""

    depth = 0


_turns, _own = _Turns(), _Own()


def _forget_turns() -> None:
    # A forked process has none of the threads that may have a turn. The one that has forked it may
    # be within its own.
    global _turns  # noqa: PLW0603 - the turns of this process
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turns)


class Turn:
    """A context in which this thread may watch the global generators or, if `seeds`, set them."""

    def __init__(self, seeds: bool) -> None:
        self._seeds = seeds
        self._turns: _Turns | None = None
        self._number, self._was_alone = 0, True

    def __enter__(self) -> Turn:
        _own.depth += 1
        if _own.depth > 1:
            return self
        turns, gave_up = _turns, False
        try:
            with turns.lock:
                before = turns.has_given_up
                if turns.wait(self._seeds):
                    self._turns, self._was_alone = turns, not turns.num_watching
                    turns.num_watching += not self._seeds
                    turns.is_seeding = self._seeds
                    turns.num_begun += 1
                    self._number = turns.num_begun
                gave_up = turns.has_given_up and not before
            if gave_up:
                warnings.warn(GAVE_UP.format(seconds=PATIENCE_S), stacklevel=2)
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def is_alone(self) -> bool:
        """True if no other thread has had a turn since this one has begun."""
        turns = self._turns
        return turns is None or (self._was_alone and turns.num_begun == self._number)

    def __exit__(self, *error: Any) -> None:
        _own.depth -= 1
        turns, self._turns = self._turns, None
        # After a fork these are the turns of the parent, which nobody here waits for.
        if turns is None:
            return
        with turns.lock:
            turns.num_watching -= not self._seeds
            turns.is_seeding = False if self._seeds else turns.is_seeding
            if turns.num_waiting:
                turns.freed.notify_all()
