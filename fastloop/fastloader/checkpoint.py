"""The state of a loader, from which the loader can resume within an epoch.

`state_dict` returns the state, and `load_state_dict` loads it. Position holds the epoch and the
number of its delivered batches. Randomness saves the states of generators and samplers at the start
of an epoch, and restores these states when the epoch is resumed.
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
"""The state of a loader, with these keys. `epoch`: number of the epoch. `delivered`: number of its
delivered batches, an int64 array without dimensions while the native core counts. `drawn_from`: the
RandomStates at the start of the epoch. `settings`: see ORDER_SETTINGS. `dataset` and HAS_ENDED: the
state of an iterable that has one. STREAMED and PENDING: only while the epoch runs."""
STREAMED = "streamed"
"""Key for a dict: number of delivered batches -> `dataset` and HAS_ENDED of the state after these
batches. Batches that were made ahead have entries, too."""
HAS_ENDED = "has_ended"
"""Key for True: an iterable with a state of its own has no more samples."""
PENDING = "pending"
"""Key for a function that returns `drawn_from`. A state has this key if its epoch draws the order
only when the first batch is asked for."""


@dataclass
class Position:
    """The epoch of the next iteration, and the state of the latest epoch."""

    epoch: int = 0
    """Number of the next iteration's epoch."""
    state: State | None = None
    """State of the epoch that runs, was left early, or was loaded; None: there is no such epoch."""
    is_loaded: bool = False
    """True if the next iteration continues `state`."""

    def copy(self) -> Position:
        """A copy of this position for another loader."""
        return replace(self, state=self.current())

    def current(self) -> State | None:
        """The state as it is now, without STREAMED and PENDING; None if there is no state."""
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
        """A number that the epoch of the loaded state has drawn.

        name: key of the number, such as ORDER_SEED. The result is None if the next iteration
        continues no state, or the state lacks the number.
        """
        return self.state["drawn_from"].get(name) if self.state and self.is_loaded else None

    def begin(self, make_state: Callable[[], State]) -> tuple[State, RandomStates | None]:
        """The state of the iteration that begins, and the random states to restore before it.

        make_state: returns the state of a new epoch. The random states are None for a new epoch.
        """
        if self.state is None or not self.is_loaded:
            self.state = make_state()
        return self.state, self.state["drawn_from"] if self.is_loaded else None

    def advance(self, state: State) -> None:
        """Let the next iteration begin the epoch after this state's epoch."""
        self.is_loaded = False
        self.epoch = state["epoch"] + 1

    def finish(self, state: State) -> None:
        """Forget the state of an epoch that has been delivered, unless another epoch has begun."""
        if self.state is state:
            self.state = None


RandomStates = dict[str, Any]
"""The value of a state's `drawn_from`: the numbers that an epoch has drawn, and the random states
from which its order follows."""
DETERMINISTIC = torch.Tensor, np.ndarray, list, tuple, range, PiecewiseSampler
"""Types of samplers that have no random state."""
ORDER_SETTINGS = "batch_size", "drop_last", "num_samples", "seed", "shuffle", "world_size"
"""A loader's settings that determine which sample is at which position of an epoch. The rank is not
one of them, because all ranks may load the state that one rank has saved."""


@dataclass(frozen=True)
class Randomness:
    """The generator and the sampler from which a loader's epochs draw their order."""

    generator: torch.Generator | None
    """None: the loader was given no generator."""
    sampler: Any
    """None: the loader was given no sampler."""

    def states(self) -> RandomStates:
        """The states of the generator, of the sampler, and of the samplers inside the sampler.

        The state of a sampler is its state_dict() or, if it has none, the state of its generator
        and its epoch. If no sampler has a state_dict() or a generator, torch's global random state
        is added. A sampler of a DETERMINISTIC type has no state.
        """
        states: RandomStates = {}
        if self.generator is not None:
            states["generator"] = self.generator.get_state()
        # None is tested first, because isinstance takes 50 us between two epochs to find that None
        # satisfies no Protocol.
        if self.sampler is not None and not isinstance(self.sampler, DETERMINISTIC):
            samplers = [_sampler_state(sampler) for sampler in sampler_chain(self.sampler)]
            states["samplers"] = samplers
            if not any({"state_dict", "generator"} & set(state) for state in samplers):
                # Samplers without a random state of their own may draw from torch's global one.
                states["torch"] = torch.get_rng_state()
        return states

    def pending_states(self, drawn: RandomStates) -> RandomStates:
        """The `drawn_from` of an epoch that has yet to draw its order.

        drawn: the numbers that the epoch has drawn. Without a generator, torch's global random
        state is a part of the result, because the order will be drawn from it.
        """
        states = drawn | self.states()
        if self.generator is None:
            states["torch"] = torch.get_rng_state()
        return states

    def draw_base(self, moments: DrawMoments, loaded: RandomStates | None) -> RandomStates:
        """The base seed of an epoch that begins, with the states that its order depends on.

        The base seed is the number that DataLoader draws in iter(), see torch_draws.py.

        loaded: the random states of a loaded state; None: the epoch continues no state. A loaded
        state without a base seed was saved before its epoch drew one. The seed is then the number
        that this epoch would have drawn. A loader without a generator also draws a number from
        torch's global generator then, unless `moments` keeps a base seed.
        """
        if loaded is None:
            return {BASE_SEED: moments.draw_base(self.generator)}
        self._check(loaded)
        drawn = dict(loaded)
        # The epoch of the loaded state had already drawn its base seed.
        if BASE_SEED in drawn:
            moments.keep_base(drawn[BASE_SEED])
        elif self.generator is not None:
            # The loader's generator is set to its state at that time, and draws from there on.
            self.generator.set_state(drawn["generator"])
            drawn[BASE_SEED] = moments.draw_base(self.generator)
            drawn["generator"] = self.generator.get_state()
        else:
            drawn[BASE_SEED] = self._draw_as_then(drawn, moments.draw_base(self.generator))
            moments.keep_base(drawn[BASE_SEED])
        return drawn

    def draw_order_seed(self, drawn: RandomStates) -> int:
        """The seed of a shuffled order, drawn from torch's saved state if `drawn` has one.

        A number is drawn from torch's global generator in any case.
        """
        return self._draw_as_then(drawn, draw_seed(None))

    @staticmethod
    def _draw_as_then(drawn: RandomStates, number: int) -> int:
        """A number drawn from the state of torch in `drawn`, or `number` if there is no such state.

        The state in `drawn` is replaced by the state after the draw.
        """
        if "torch" not in drawn:
            return number
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(drawn["torch"])
            number = draw_seed(None)
            drawn["torch"] = torch.get_rng_state()
        return number

    def restore(self, states: RandomStates | None) -> AbstractContextManager[None]:
        """A context that restores these states when it is entered.

        states: None: nothing is restored. torch's global random state is restored only within the
        context. Entering the context raises ValueError for the states of a loader with other
        generators or samplers.
        """
        return nullcontext() if states is None else self._restore(states)

    def _check(self, states: RandomStates) -> list[Any]:
        """The samplers to which these states belong.

        Raises ValueError for the states of a loader with other generators or samplers.
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
        """Restore these states, see `restore`."""
        samplers = self._check(states)
        saved = states.get("samplers", [])
        if self.generator is not None:
            self.generator.set_state(states["generator"])
        for sampler, state in zip(samplers, saved, strict=True):
            _restore_sampler(sampler, state)
        # fork_rng() resets torch's state at the end, so the program's own draws are not affected.
        with torch.random.fork_rng(devices=[], enabled="torch" in states):
            if "torch" in states:
                torch.set_rng_state(states["torch"])
            yield

    def set_epoch(self, epoch: int) -> None:
        """Call set_epoch of the sampler, and of the samplers inside it, if they have it."""
        for sampler in sampler_chain(self.sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


def order_settings(order: EpochOrder) -> dict[str, Any]:
    """An order's ORDER_SETTINGS, as built-in types that every format of checkpoints can hold."""
    settings = {name: getattr(order, name) for name in ORDER_SETTINGS}
    # `shuffle` may be a Blocks, but some formats of checkpoints load only built-in types.
    return settings | {"shuffle": str(settings["shuffle"])}


def initial_state(epoch: int, states: RandomStates, order: EpochOrder) -> State:
    """A loader's state at the start of an epoch, with these random states."""
    settings = order_settings(order)
    return {"epoch": epoch, "delivered": 0, "drawn_from": states, "settings": settings}


def check_settings(state: State, order: EpochOrder) -> None:
    """Raise ValueError for a state that a loader with this order can't continue.

    Such a state has other ORDER_SETTINGS, or names no position of an epoch. Raises TypeError for an
    object that is not a state.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state={short_repr(state)}: allowed is what state_dict() has returned")
    # The states of torchdata's StatefulDataLoader have these keys.
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
    """Raise ValueError for a state without valid `epoch`, `delivered` and `drawn_from`."""
    for name in ("epoch", "delivered"):
        value: Any = state.get(name)
        if not hasattr(value, "__index__") or value < 0:
            raise ValueError(f"state[{name!r}]={short_repr(value)}: allowed is 0 or more")
    if not isinstance(state.get("drawn_from"), Mapping):
        value = short_repr(state.get("drawn_from"))
        raise ValueError(f"state['drawn_from']={value}: allowed is a dict of random states")


def _sampler_state(sampler: Any) -> dict[str, Any]:
    """The state of a single sampler, see `Randomness.states`."""
    # The state is copied, because a sampler may return a dict that it changes later.
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return {"state_dict": deepcopy(sampler.state_dict())}
    state: dict[str, Any] = {}
    if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        state["generator"] = generator.get_state()
    if hasattr(sampler, "set_epoch") and hasattr(sampler, "epoch"):
        state["epoch"] = sampler.epoch
    return state


def _restore_sampler(sampler: Any, state: dict[str, Any]) -> None:
    """Set a sampler to a state that `_sampler_state` has returned."""
    if "state_dict" in state:
        sampler.load_state_dict(deepcopy(state["state_dict"]))
    if "generator" in state:
        sampler.generator.set_state(state["generator"])
    if "epoch" in state:
        sampler.set_epoch(state["epoch"])
