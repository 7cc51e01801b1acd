"""What an epoch's order depends on, as it was when the epoch began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.order import Pieces

States = dict[str, Any]
GIVEN = torch.Tensor | np.ndarray | list | tuple | range
"""Orders in which nothing is left to chance."""
SETTINGS = "batch_size", "drop_last", "num_samples", "seed", "shuffle", "world_size"
"""Of a loader: with another one, other samples are at the same place in an epoch. The rank is not
among them, because what one rank saved all may load."""


def drawn_from(generator: torch.Generator | None, sampler: Any) -> States:
    """The states of the loader's generator, and of its sampler and those that this draws from.

    A sampler with `state_dict` tells its own; of another its generator and its epoch are taken, and
    torch's global state where it has no generator.
    """
    states: States = {}
    if generator is not None:
        states["generator"] = generator.get_state()
    if sampler is not None and not isinstance(sampler, GIVEN | Pieces):
        levels = [_state_of(one) for one in _levels(sampler)]
        states["samplers"] = levels
        if not any({"state_dict", "generator"} & set(level) for level in levels):
            states["torch"] = torch.get_rng_state()
    return states


def settings_of(loader: Any) -> States:
    """These settings of it, plain enough for any file of a checkpoint."""
    settings = {name: getattr(loader, name) for name in SETTINGS}
    return settings | {"shuffle": str(settings["shuffle"])}  # Blocks is a class of our own


def check_same(state: States, loader: Any) -> None:
    """Raise ValueError where a loader's state was saved with other settings than it has now."""
    saved, own = state.get("settings", {}), settings_of(loader)
    for name, value in own.items():
        if name not in saved:
            raise ValueError(f"this state does not tell {name}, which is {value} here")
        if saved[name] != value:
            raise ValueError(f"{name}={value}: this state is of a loader with {name}={saved[name]}")


@contextmanager
def put_back(
    states: States | None, generator: torch.Generator | None, sampler: Any
) -> Iterator[None]:
    """The same is drawn inside of this as from those states, if any; torch's global state is what
    it was then.

    Raises ValueError where they are of another loader.
    """
    if states is None:
        yield
        return
    levels = list(_levels(sampler)) if "samplers" in states else []
    if ("generator" in states) != (generator is not None) or len(levels) != len(
        states.get("samplers", [])
    ):
        raise ValueError("this state is of a loader with another generator or sampler")
    if generator is not None:
        generator.set_state(states["generator"])
    for one, state in zip(levels, states.get("samplers", []), strict=True):
        _put_back(one, state)
    with torch.random.fork_rng(devices=[], enabled="torch" in states):
        if "torch" in states:
            torch.set_rng_state(states["torch"])
        yield


def set_epoch(sampler: Any, epoch: int) -> None:
    """Tell a sampler, and those that it draws from, as far as they ask."""
    for one in _levels(sampler):
        if hasattr(one, "set_epoch"):
            one.set_epoch(epoch)


def _levels(sampler: Any) -> Iterator[Any]:
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def _state_of(sampler: Any) -> States:
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return {"state_dict": deepcopy(sampler.state_dict())}
    state: States = {}
    if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        state["generator"] = generator.get_state()
    if hasattr(sampler, "set_epoch") and hasattr(sampler, "epoch"):
        state["epoch"] = sampler.epoch
    return state


def _put_back(sampler: Any, state: States) -> None:
    if "state_dict" in state:
        sampler.load_state_dict(deepcopy(state["state_dict"]))
    if "generator" in state:
        sampler.generator.set_state(state["generator"])
    if "epoch" in state:
        sampler.set_epoch(state["epoch"])
