"""The state of a loader, which state_dict saves and load_state_dict resumes within an epoch.

Position has the epoch and the number of its batches that have been delivered. Randomness saves
the states of generators and samplers at the start of an epoch, and restores them to resume it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import index
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.batching import PiecewiseSampler, sampler_chain
from fastloop.fastloader.order import EpochOrder
from fastloop.fastloader.torch_draws import BASE_SEED, DrawMoments, draw_seed

State = dict[str, Any]
"""`epoch`; `delivered` (batches; an int64 array without dimensions while the native core counts);
`drawn_from` (random states at its start); `settings`; `dataset`, the state of an iterable that
has one, and HAS_ENDED; while an epoch runs, STREAMED and PENDING."""
STREAMED = "streamed"
"""The state's key for a dict: number of delivered batches -> `dataset` and HAS_ENDED of the state
at that time. Batches that were made ahead have entries, too."""
HAS_ENDED = "has_ended"
"""The state's key for True, which says that an iterable with a state of its own has no more
samples."""
PENDING = "pending"
"""The state's key for a function that returns `drawn_from`. The state has it if the epoch draws its
order only when its first batch is asked for."""


@dataclass
class Position:
    """The next iteration's epoch, and the state of the epoch that runs or was left early."""

    epoch: int = 0
    state: State | None = None
    is_loaded: bool = False
    """True if the next iteration continues the state."""

    def copy(self) -> Position:
        """A copy of this position for another loader."""
        return replace(self, state=self.current())

    def current(self) -> State | None:
        """The state as it is now, of built-in types."""
        if self.state is None:
            return None
        state: State = self.state | {"delivered": int(self.state["delivered"])}
        streamed = state.pop(STREAMED, {})
        pending = state.pop(PENDING, None)
        if pending is not None:
            state["drawn_from"] = pending()
        return state | streamed.get(state["delivered"], {})

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch; a loaded state of this epoch is kept.

        Raises ValueError for a number below 0.
        """
        if not hasattr(epoch, "__index__") or epoch < 0:
            raise ValueError(f"epoch={short_repr(epoch)}: allowed is 0 or more")
        epoch = index(epoch)
        # Scripts call set_epoch before each epoch, including the one that they resume.
        if not (self.state and self.is_loaded and self.state["epoch"] == epoch):
            self.epoch = epoch
            self.state = None
            self.is_loaded = False

    def load(self, state: State) -> None:
        """Load a state, which the next iteration continues."""
        # Some formats of checkpoints return arrays or tensors for numbers.
        numbers = {name: index(state[name]) for name in ("epoch", "delivered")}
        self.state = {**state, **numbers}
        self.is_loaded = True
        self.epoch = numbers["epoch"]

    def read_loaded(self, name: str) -> Any:
        """A number that the epoch of a loaded state has drawn, by its name; None if the next
        iteration continues no state, or the state lacks the number.
        """
        return self.state["drawn_from"].get(name) if self.state and self.is_loaded else None

    def begin(self, make_state: Callable[[], State]) -> tuple[State, RandomStates | None]:
        """The state of the iteration that begins, and the random states to restore before it."""
        if self.state is None or not self.is_loaded:
            self.state = make_state()
        return self.state, self.state["drawn_from"] if self.is_loaded else None

    def advance(self, state: State) -> None:
        """Set the next iteration's epoch to the one after this state's epoch."""
        self.is_loaded = False
        self.epoch = state["epoch"] + 1

    def finish(self, state: State) -> None:
        """Forget this state, as its epoch has been delivered, unless another one has begun."""
        if self.state is state:
            self.state = None


RandomStates = dict[str, Any]
"""The numbers that an epoch has drawn, and the random states from which its order follows: a
state's `drawn_from`."""
DETERMINISTIC = torch.Tensor, np.ndarray, list, tuple, range, PiecewiseSampler
"""Types of samplers that have no random state."""
ORDER_SETTINGS = "batch_size", "drop_last", "num_samples", "seed", "shuffle", "world_size"
"""A loader's settings that determine which sample is at which position of an epoch. The rank is not
one of them: all ranks may load the state that one has saved."""


@dataclass(frozen=True)
class Randomness:
    """The generator and the sampler, if any, from which a loader's epoch draws its order."""

    generator: torch.Generator | None
    sampler: Any

    def states(self) -> RandomStates:
        """The states of the generator, the sampler, and the samplers that this one wraps.

        A sampler's state is its state_dict(), or else its generator's state and its epoch; torch's
        global random state is added if none of the samplers has either.
        """
        states: RandomStates = {}
        if self.generator is not None:
            states["generator"] = self.generator.get_state()
        # None is tested first: between two epochs it takes 50 us to find that it satisfies no
        # Protocol.
        if self.sampler is not None and not isinstance(self.sampler, DETERMINISTIC):
            samplers = [_sampler_state(sampler) for sampler in sampler_chain(self.sampler)]
            states["samplers"] = samplers
            if not any({"state_dict", "generator"} & set(state) for state in samplers):
                # The samplers name no random state of their own: they may draw from torch's.
                states["torch"] = torch.get_rng_state()
        return states

    def pending_states(self, drawn: RandomStates) -> RandomStates:
        """The numbers that an epoch has drawn, with the states from which its order follows."""
        states = drawn | self.states()
        if self.generator is None:
            states["torch"] = torch.get_rng_state()
        return states

    def draw_base(self, moments: DrawMoments, loaded: RandomStates | None) -> RandomStates:
        """The base seed of an epoch that begins, with the states that its order depends on.

        loaded: the random states of a loaded state; None if the epoch continues no state. If the
        state was saved before its epoch had drawn the base seed, the seed is the number that the
        epoch would have drawn. A loader without a generator of its own then draws a number from
        torch's global generator all the same, unless its base seed is kept.
        """
        if loaded is None:
            return {BASE_SEED: moments.draw_base(self.generator)}
        self._check(loaded)
        drawn = dict(loaded)
        # The state's epoch had begun, and had drawn its base seed.
        if BASE_SEED in drawn:
            moments.keep_base(drawn[BASE_SEED])
        elif self.generator is not None:
            # The loader's own generator goes back to its state at that time, and goes on from
            # there.
            self.generator.set_state(drawn["generator"])
            drawn[BASE_SEED] = moments.draw_base(self.generator)
            drawn["generator"] = self.generator.get_state()
        else:
            drawn[BASE_SEED] = self._draw_as_then(drawn, moments.draw_base(self.generator))
            moments.keep_base(drawn[BASE_SEED])
        return drawn

    def draw_order_seed(self, drawn: RandomStates) -> int:
        """The seed of a shuffled order, drawn from torch's saved state if `drawn` has one.

        torch's global generator draws a number in any case.
        """
        return self._draw_as_then(drawn, draw_seed(None))

    @staticmethod
    def _draw_as_then(drawn: RandomStates, number: int) -> int:
        """The given number if `drawn` has no state of torch. Otherwise a number that is drawn from
        this state; `drawn` then has the state after that draw."""
        if "torch" not in drawn:
            return number
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(drawn["torch"])
            number = draw_seed(None)
            drawn["torch"] = torch.get_rng_state()
        return number

    def restore(self, states: RandomStates | None) -> AbstractContextManager[None]:
        """Restore the states, if any; torch's global random state only within this context.

        Entering raises ValueError for the states of a loader with other generators or samplers.
        """
        return nullcontext() if states is None else self._restore(states)

    def _check(self, states: RandomStates) -> list[Any]:
        """The samplers that these states belong to; raises ValueError for states of another
        loader.
        """
        samplers = list(sampler_chain(self.sampler)) if "samplers" in states else []
        is_generated = self.generator is not None
        count = len(states.get("samplers", []))
        if ("generator" in states) != is_generated or len(samplers) != count:
            raise ValueError(
                "this state was saved with a generator or samplers that this loader lacks, or "
                "without those that it has"
            )
        return samplers

    @contextmanager
    def _restore(self, states: RandomStates) -> Iterator[None]:
        samplers = self._check(states)
        saved = states.get("samplers", [])
        if self.generator is not None:
            self.generator.set_state(states["generator"])
        for sampler, state in zip(samplers, saved, strict=True):
            _restore_sampler(sampler, state)
        # fork_rng() restores torch's state at the end, so the program's own draws are the same.
        with torch.random.fork_rng(devices=[], enabled="torch" in states):
            if "torch" in states:
                torch.set_rng_state(states["torch"])
            yield

    def set_epoch(self, epoch: int) -> None:
        """Call set_epoch of the sampler and of those that it wraps, if they have it."""
        for sampler in sampler_chain(self.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


def order_settings(order: EpochOrder) -> dict[str, Any]:
    """An order's ORDER_SETTINGS, as built-in types that any checkpoint format can hold."""
    settings = {name: getattr(order, name) for name in ORDER_SETTINGS}
    # Blocks is not a built-in type, which is all that some formats of checkpoints load.
    return settings | {"shuffle": str(settings["shuffle"])}


def initial_state(epoch: int, states: RandomStates, order: EpochOrder) -> State:
    """A loader's state at the start of an epoch, with these random states."""
    settings = order_settings(order)
    return {"epoch": epoch, "delivered": 0, "drawn_from": states, "settings": settings}


def check_settings(state: State, order: EpochOrder) -> None:
    """Raise ValueError for a state that was saved by a loader with another order's settings, and
    TypeError for an object that is not a state."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state={short_repr(state)}: allowed is what state_dict() has returned")
    # Keys of torchdata's states: a checkpoint from before the change to FastLoader.
    if "_num_yielded" in state or "_snapshot" in state:
        advice = "finish its epoch with that, or begin the next one with set_epoch"
        raise ValueError(f"this state is of torchdata's StatefulDataLoader: {advice}")
    given = state.get("settings")
    settings = order_settings(order)
    saved = given if isinstance(given, Mapping) else {}
    for name, value in settings.items():
        if name not in saved:
            raise ValueError(f"{name}={value}: this state does not contain {name}")
        if saved[name] != value:
            raise ValueError(f"{name}={value}: this state is of a loader with {name}={saved[name]}")
    _check_position(state)


def _check_position(state: State) -> None:
    """Raise ValueError for a state that names no position of an epoch."""
    for name in ("epoch", "delivered"):
        value: Any = state.get(name)
        if not hasattr(value, "__index__") or value < 0:
            raise ValueError(f"state[{name!r}]={short_repr(value)}: allowed is 0 or more")
    if not isinstance(state.get("drawn_from"), Mapping):
        value = short_repr(state.get("drawn_from"))
        raise ValueError(f"state['drawn_from']={value}: allowed is a dict of random states")


def _sampler_state(sampler: Any) -> dict[str, Any]:
    # The state is copied, because the sampler may return the very dict that it goes on changing.
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return {"state_dict": deepcopy(sampler.state_dict())}
    state: dict[str, Any] = {}
    if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        state["generator"] = generator.get_state()
    if hasattr(sampler, "set_epoch") and hasattr(sampler, "epoch"):
        state["epoch"] = sampler.epoch
    return state


def _restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    if "state_dict" in state:
        sampler.load_state_dict(deepcopy(state["state_dict"]))
    if "generator" in state:
        sampler.generator.set_state(state["generator"])
    if "epoch" in state:
        sampler.set_epoch(state["epoch"])
