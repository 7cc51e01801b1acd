"""A loader's position: the epoch, and the number of its batches that have been delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from reprlib import repr as short_repr
from typing import Any

State = dict[str, Any]
"""`epoch`; `delivered` (batches; an int64 array without dimensions while the native core counts);
`drawn_from` (random states at its begin); `settings`; `dataset`, the state of an iterable that
has one; while an epoch runs, STREAMED and PENDING."""
STREAMED = "streamed"
"""The state's key for a dict from the number of batches delivered to the iterable's state then. It
has entries of batches that were made ahead."""
PENDING = "pending"
"""The state's key for a function that returns `drawn_from`, if the epoch draws its order when its
first batch is asked for."""


@dataclass
class Position:
    """The epoch of the next iteration, and the state of the one that runs or was left early."""

    epoch: int = 0
    state: State | None = None
    is_loaded: bool = False
    """True if the next iteration continues the state."""

    def copy(self) -> Position:
        """A position of its own, for another loader."""
        return replace(self, state=self.current())

    def current(self) -> State | None:
        """The state as it is now, of built-in types."""
        if self.state is None:
            return None
        state: State = self.state | {"delivered": int(self.state["delivered"])}
        streamed, pending = state.pop(STREAMED, {}), state.pop(PENDING, None)
        if pending is not None:
            state["drawn_from"] = pending()
        if state["delivered"] in streamed:
            state["dataset"] = streamed[state["delivered"]]
        return state

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch; a state loaded within this epoch is kept.

        Raises ValueError for a number below 0.
        """
        if not hasattr(epoch, "__index__") or epoch < 0:
            raise ValueError(f"epoch={short_repr(epoch)}: allowed is 0 or more")
        # Scripts call set_epoch before each epoch, also before the one that they resume.
        if not (self.state and self.is_loaded and self.state["epoch"] == epoch):
            self.epoch, self.state, self.is_loaded = epoch, None, False

    def load(self, state: State) -> None:
        """Let the next iteration continue this state."""
        self.state, self.is_loaded, self.epoch = dict(state), True, state["epoch"]

    def read_loaded(self, name: str) -> Any:
        """A number drawn by the state that the next iteration continues; None without such a
        state.
        """
        return self.state["drawn_from"].get(name) if self.state and self.is_loaded else None

    def begin(self, make_state: Callable[[], State]) -> tuple[State, State | None]:
        """The state of the iteration that begins, and the random states to restore before it."""
        if self.state is None or not self.is_loaded:
            self.state = make_state()
        return self.state, self.state["drawn_from"] if self.is_loaded else None

    def advance(self, state: State) -> None:
        """Let the next iteration be the epoch after this state's."""
        self.is_loaded, self.epoch = False, state["epoch"] + 1

    def finish(self, state: State) -> None:
        """Forget this state, as its epoch has been delivered, unless another one has begun."""
        if self.state is state:
            self.state = None
