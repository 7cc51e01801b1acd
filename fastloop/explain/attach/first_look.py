"""Find out from the first batch of a pass whether a store could keep the dataset's samples."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from fastloop.observe.warning_frames import skip_in_warnings

MOST_NESTED = 4
"""Depth to which nested objects are searched, such as a Subset, its dataset and its transforms."""
LONGEST_SEARCHED = 16
"""Longer lists and dictionaries are not searched: they are data."""
GENERATORS = {
    "numpy.random._generator.Generator",
    "numpy.random.mtrand.RandomState",
    "random.Random",
    "torch._C.Generator",
}
"""The classes of random number generators, by module and name."""


class FirstBatchCheck:
    """Watches a batch while it is fetched. It reads no sample again and draws no random number."""

    def __init__(self, fetcher: Any) -> None:
        self.fetcher = fetcher
        self.collate = fetcher.collate_fn
        self.reason = ""
        self.states = _generator_states()
        fetcher.collate_fn = self.collate_first

    @skip_in_warnings
    def collate_first(self, samples: Any) -> Any:
        """The batch of the samples, by the fetcher's own function."""
        self.reason = _look(lambda: _find_unstorable(_first_of(samples)))
        return self.collate(samples)

    def restore_collate(self) -> None:
        """Give the fetcher its own function back."""
        self.fetcher.collate_fn = self.collate

    def reason_against_store(self) -> str:
        """The reason why these samples can't be kept in a store; empty if none was found."""
        return _look(self._find_draws) or self.reason

    def _find_draws(self) -> str:
        dataset = self.fetcher.dataset
        is_drawn = self.states != _generator_states() or _has_generator(dataset, MOST_NESTED)
        return "its samples are drawn at random" if is_drawn else ""


def _look(find: Callable[[], str]) -> str:
    """The text that the function returns; if it raises, that the samples can't be looked at."""
    # The script's objects may raise anything, such as a proxy outside of its context.
    try:
        return find()
    except Exception:
        return "its samples can't be looked at"


def _first_of(samples: Any) -> Any:
    return samples[0] if isinstance(samples, list) and samples else samples


def _generator_states() -> list[Any]:
    """The states of this process's generators of random numbers."""
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
    if numpy := sys.modules.get("numpy"):
        name, keys, place, *_ = numpy.random.get_state()
        states.append((name, keys.tobytes(), place))
    return states


def _find_unstorable(sample: Any) -> str:
    """The reason why a store can't keep the sample; empty if it can."""
    # torch's pytree is not used, because this module may be imported while the script's own import
    # of torch is not complete.
    kind = type(sample)
    if kind in (list, tuple, dict) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        leaves = sample.values() if kind is dict else sample
        return next(filter(None, map(_find_unstorable, leaves)), "")
    numpy = sys.modules.get("numpy")
    arrays = (numpy.ndarray, numpy.generic) if numpy else ()
    if isinstance(sample, (torch.Tensor, bool, int, float, *arrays)):
        return ""
    return f"a store can't keep {type(sample).__qualname__}"


def _has_generator(holder: Any, depth: int) -> bool:
    """True if the object, or one inside of it, has a generator of random numbers of its own."""
    return depth > 0 and any(
        _is_generator(each) or _has_generator(each, depth - 1) for each in _parts(holder)
    )


def _is_generator(value: Any) -> bool:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    return bool(names & GENERATORS)


def _parts(holder: Any) -> Iterator[Any]:
    """The objects that an object or a short list has."""
    if isinstance(holder, type | ModuleType | FunctionType | torch.Tensor):
        return
    if isinstance(holder, list | tuple | dict):
        # Data are not searched: a dataset may have a long list of samples or of paths.
        parts = holder.values() if isinstance(holder, dict) else holder
        yield from parts if len(holder) <= LONGEST_SEARCHED else ()
        return
    yield from getattr(holder, "__dict__", {}).values()
