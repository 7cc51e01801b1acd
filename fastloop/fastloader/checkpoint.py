"""The state of a loader, from which the loader can resume within an epoch.

A loader's `state_dict` returns a State as a dict, and `load_state_dict` reads such a dict.
EpochProgress counts the batches of a running epoch, and Position holds the latest EpochProgress.
Randomness saves the states of generators and samplers at the start of an epoch, and restores these
states when the epoch is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from operator import index
from reprlib import repr as short_repr
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.batching import PiecewiseSampler, sampler_chain
from fastloop.fastloader.order import EpochOrder
from fastloop.fastloader.torch_draws import BASE_SEED, DrawMoments, draw_seed

RandomStates = dict[str, Any]
"""The numbers that an epoch has drawn, and the random states from which its order follows."""
ORDER_SETTINGS = "batch_size", "drop_last", "num_samples", "seed", "shuffle", "world_size"
"""A loader's settings that determine which sample is at which position of an epoch. The rank is not
one of them, because all ranks may load the state that one rank has saved."""
DATASET, HAS_ENDED = "dataset", "has_ended"
"""Keys of a saved state: the result of an iterable's state_dict(), and True if the iterable has no
more samples."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a loader, from which the loader can resume within an epoch."""

    epoch: int
    """Number of the epoch, from 0 on."""
    delivered: int = 0
    """Number of batches of the epoch that the loop has received."""
    drawn_from: RandomStates
    """The numbers that the epoch has drawn, and the random states at its start."""
    settings: Mapping[str, Any]
    """The loader's ORDER_SETTINGS, as built-in types."""
    of_iterable: Mapping[str, Any] = field(default_factory=dict)
    """DATASET and HAS_ENDED, if the source is an iterable with a state_dict(); otherwise empty."""

    @classmethod
    def read(cls, saved: Any, order: EpochOrder) -> State:
        """The state that `to_dict` has saved, for a loader with this order.

        Raises ValueError for a state of torchdata's StatefulDataLoader or of a loader with other
        ORDER_SETTINGS, and for a state that names no position of an epoch. Raises TypeError for an
        object that is not a mapping.
        """
        if not isinstance(saved, Mapping):
            raise TypeError(f"state={short_repr(saved)}: allowed is what state_dict() has returned")
        # The states of torchdata's StatefulDataLoader have these keys.
        if "_num_yielded" in saved or "_snapshot" in saved:
            advice = "finish its epoch with that, or begin the next one with set_epoch"
            raise ValueError(f"this state is of torchdata's StatefulDataLoader: {advice}")
        _check_settings(saved.get("settings"), order)
        epoch, delivered = _read_count(saved, "epoch"), _read_count(saved, "delivered")
        if not isinstance(saved.get("drawn_from"), Mapping):
            shown = short_repr(saved.get("drawn_from"))
            raise ValueError(f"state['drawn_from']={shown}: allowed is a dict of random states")
        rest = {**saved}
        for name in ("epoch", "delivered", "drawn_from", "settings"):
            del rest[name]
        return cls(
            epoch=epoch,
            delivered=delivered,
            drawn_from=saved["drawn_from"],
            settings=saved["settings"],
            of_iterable=rest,
        )

    def to_dict(self) -> dict[str, Any]:
        """The result of the loader's state_dict(): the fields, with those of `of_iterable`."""
        return {
            "epoch": self.epoch,
            "delivered": self.delivered,
            "drawn_from": self.drawn_from,
            # All epochs of a loader share the settings, and a program may change the result.
            "settings": dict(self.settings),
            **self.of_iterable,
        }


def order_settings(order: EpochOrder) -> dict[str, Any]:
    """An order's ORDER_SETTINGS, as built-in types that every format of checkpoints can hold."""
    settings = {name: getattr(order, name) for name in ORDER_SETTINGS}
    # `shuffle` may be a Blocks, but some formats of checkpoints load only built-in types.
    return settings | {"shuffle": str(settings["shuffle"])}


def _check_settings(saved: Any, order: EpochOrder) -> None:
    """Raise ValueError unless these saved settings are the ORDER_SETTINGS of this order."""
    saved = saved if isinstance(saved, Mapping) else {}
    for name, value in order_settings(order).items():
        if name not in saved:
            raise ValueError(f"{name}={value}: this state does not contain {name}")
        if saved[name] != value:
            raise ValueError(f"{name}={value}: this state is of a loader with {name}={saved[name]}")


def _read_count(saved: Mapping[str, Any], name: str) -> int:
    """The number of this name in a saved state; raises ValueError unless it is 0 or more."""
    value: Any = saved.get(name)
    if not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"state[{name!r}]={short_repr(value)}: allowed is 0 or more")
    # Some formats of checkpoints return arrays or tensors for numbers.
    return index(value)


@dataclass
class EpochProgress:
    """The state of an epoch that runs, was left early, or is to be continued."""

    start: State
    """The state with which the epoch begins, or is continued."""
    delivered: int | np.ndarray
    """Number of batches of the epoch that the loop has received so far. While the native core
    counts, this is an int64 array without dimensions."""
    drawn_from: RandomStates
    """The numbers that the epoch has drawn, and the random states from which its order follows."""
    pending: Callable[[], RandomStates] | None = None
    """Returns the `drawn_from` of an epoch that draws its order only when the first batch is asked
    for. None if the order has been drawn."""
    streamed: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Number of delivered batches -> the state's `of_iterable` after these batches. Batches that
    were made ahead have entries, too."""

    @classmethod
    def of(cls, state: State) -> EpochProgress:
        """The progress of an epoch that is continued from this state."""
        return cls(state, state.delivered, state.drawn_from)

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.start.epoch

    def current(self) -> State:
        """The state as it is now."""
        delivered = int(self.delivered)
        return replace(
            self.start,
            delivered=delivered,
            drawn_from=self.drawn_from if self.pending is None else self.pending(),
            of_iterable={**self.start.of_iterable, **self.streamed.get(delivered, {})},
        )


@dataclass
class Position:
    """The epoch of the next iteration, and the state of the latest epoch."""

    epoch: int = 0
    """Number of the next iteration's epoch."""
    progress: EpochProgress | None = None
    """The epoch that runs, was left early, or was loaded; None: there is no such epoch."""
    is_loaded: bool = False
    """True if the next iteration continues `progress`."""

    def copy(self) -> Position:
        """A copy of this position for another loader."""
        state = self.current()
        return replace(self, progress=None if state is None else EpochProgress.of(state))

    def current(self) -> State | None:
        """The state of the epoch as it is now; None if there is no epoch."""
        return None if self.progress is None else self.progress.current()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch; a loaded state of this epoch is kept.

        Raises ValueError for anything but an integer of 0 or more.
        """
        if not hasattr(epoch, "__index__") or epoch < 0:
            raise ValueError(f"epoch={short_repr(epoch)}: allowed is 0 or more")
        epoch = index(epoch)
        # Scripts call set_epoch before each epoch, including the one that they resume.
        if not (self.progress and self.is_loaded and self.progress.epoch == epoch):
            self.epoch = epoch
            self.progress = None
            self.is_loaded = False

    def load(self, state: State) -> None:
        """Load a state, which the next iteration continues."""
        self.progress = EpochProgress.of(state)
        self.is_loaded = True
        self.epoch = state.epoch

    @property
    def states_to_restore(self) -> RandomStates | None:
        """The random states that the next iteration restores; None if it continues no state."""
        return self.progress.drawn_from if self.progress and self.is_loaded else None

    def begin(self, start: Callable[[], State]) -> EpochProgress:
        """The progress of the iteration that begins. start: returns the state of a new epoch."""
        if self.progress is None or not self.is_loaded:
            self.progress = EpochProgress.of(start())
        return self.progress

    def advance(self, progress: EpochProgress) -> None:
        """Let the next iteration begin the epoch after this one."""
        self.is_loaded = False
        self.epoch = progress.epoch + 1

    def finish(self, progress: EpochProgress) -> None:
        """Forget an epoch that has been delivered, unless another epoch has begun."""
        if self.progress is progress:
            self.progress = None


DETERMINISTIC = torch.Tensor, np.ndarray, list, tuple, range, PiecewiseSampler
"""Types of samplers that have no random state."""


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
        and its epoch. If there are samplers, but none with a state_dict() or a generator, torch's
        global random state is added. If the loader's sampler is of a DETERMINISTIC type, no state
        of a sampler is saved.
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
        """The base seed of an epoch that begins, added to the random states of a loaded state.

        The base seed is the number that DataLoader draws in iter(), see torch_draws.py. If a loaded
        state has none, because it was saved before its epoch drew a base seed, the result has the
        number that its epoch would have drawn.

        loaded: None: the epoch continues no state. Raises ValueError for the states of a loader
        with other generators or samplers.
        """
        if loaded is None:
            return {BASE_SEED: moments.draw_base(self.generator)}
        self._check(loaded)
        drawn = dict(loaded)
        if BASE_SEED in drawn:
            moments.keep_base(drawn[BASE_SEED])
        elif self.generator is not None:
            # The loader's generator is set to its state at that time, and draws from there on.
            self.generator.set_state(drawn["generator"])
            drawn[BASE_SEED] = moments.draw_base(self.generator)
            drawn["generator"] = self.generator.get_state()
        else:
            # The program's own draws stay those that it makes with a DataLoader, so a number is
            # drawn from torch's global generator, too, unless `moments` has kept a base seed.
            drawn[BASE_SEED] = self._draw_as_then(drawn, moments.draw_base(None))
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
