"""Wrappers for the parts of a DataLoader, which record an event at each use.

Workers receive the wrappers like the originals, by pickling or by a fork. A wrapper delegates
everything else to its original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings


class ProbedDataset:
    """A wrapper of a map-style or iterable dataset that records an event for each read.

    The attributes of the wrapper are those of the dataset.
    """

    def __init__(self, dataset: Any, part: Part, log: EventLog) -> None:
        # An ordinary assignment would set an attribute of the dataset, see __setattr__.
        self.__dict__.update(_dataset=dataset, _part=part, _log=log)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProbedDataset, (self._dataset, self._part, self._log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # A worker_init_fn gives the worker's copy of an IterableDataset its share of the samples.
        setattr(self._dataset, name, value)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        # DataLoader recognizes the style of a dataset by isinstance.
        return type(self.__dict__["_dataset"])

    def __len__(self) -> int:
        return len(self._dataset)

    @skip_in_warnings
    def __getitem__(self, index: Any) -> Any:
        start_ns = now_ns()
        item = self._dataset[index]
        self._log.here().add(self._part, start_ns, now_ns())
        return item

    @skip_in_warnings
    def __getitems__(self, indices: list[Any]) -> Any:
        """The argument of collate_fn, as torch's fetcher would make it without this class."""
        log = self._log.here()
        dataset = self._dataset
        # A dataset may set __getitems__ to None to be read sample by sample, as torch permits.
        getitems = getattr(dataset, "__getitems__", None)
        # Without __getitems__, each sample is an event while the log has room for details.
        # Otherwise each batch is one event.
        if not getitems and log.is_detailed:
            return [self[index] for index in indices]
        start_ns = now_ns()
        samples = getitems(indices) if getitems else [dataset[index] for index in indices]
        log.add(self._part, start_ns, now_ns())
        return samples

    def __iter__(self) -> Iterator[Any]:
        return ProbedIterator(iter(self._dataset), self._part, self._log)


class ProbedIterator:
    """An IterableDataset's iterator that records an event for each sample."""

    def __init__(self, iterator: Iterator[Any], part: Part, log: EventLog) -> None:
        self._iterator = iterator
        self._part = part
        self._log = log

    def __iter__(self) -> ProbedIterator:
        return self

    @skip_in_warnings
    def __next__(self) -> Any:
        start_ns = now_ns()
        sample = next(self._iterator)
        self._log.here().add(self._part, start_ns, now_ns())
        return sample


@dataclass(frozen=True)
class ProbedCollate:
    """A collate_fn that records an event per call."""

    function: Callable[[Any], Any]
    log: EventLog

    @skip_in_warnings
    def __call__(self, samples: Any) -> Any:
        """The function's batch."""
        start_ns = now_ns()
        batch = self.function(samples)
        self.log.here().add(Part.COLLATE, start_ns, now_ns())
        return batch


@dataclass(frozen=True)
class ProbedCall:
    """A function that records an event for each call, while the log has room for details."""

    function: Callable[..., Any]
    part: Part
    log: EventLog

    def __getattr__(self, name: str) -> Any:
        # pickle looks up special methods before this object has its attribute `function`. Reading
        # that attribute would then call this method without end.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.function, name)

    @skip_in_warnings
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        log = self.log.here()
        if not log.is_detailed:
            return self.function(*args, **kwargs)
        start_ns = now_ns()
        result = self.function(*args, **kwargs)
        log.add(self.part, start_ns, now_ns())
        return result
