"""Wrappers of a DataLoader's dataset, collate_fn and other functions that record each use.

Workers receive a wrapper as they receive the original, by pickling or by a fork. The attributes of
the wrapper of a dataset, or of a ProbedCall, are those of the original.
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
        """Wrap the dataset. part: the part of an epoch to which the reads belong."""
        # An ordinary assignment would set an attribute of the dataset, see __setattr__.
        self.__dict__.update(_dataset=dataset, _part=part, _log=log)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProbedDataset, (self._dataset, self._part, self._log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # A worker_init_fn may set attributes of the worker's copy of an IterableDataset, to choose
        # the samples of that worker.
        setattr(self._dataset, name, value)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        # DataLoader tells iterable datasets from map-style ones by isinstance.
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
        """The samples of a batch, as torch would read them from the dataset without this class."""
        log = self._log.here()
        dataset = self._dataset
        # A dataset may set __getitems__ to None to be read sample by sample, as torch permits.
        getitems = getattr(dataset, "__getitems__", None)
        # If the dataset has no __getitems__, each sample is an event while the log has room for
        # such details. In all other cases the batch is one event.
        if not getitems and log.is_detailed:
            return [self[index] for index in indices]
        start_ns = now_ns()
        samples = getitems(indices) if getitems else [dataset[index] for index in indices]
        log.add(self._part, start_ns, now_ns())
        return samples

    def __iter__(self) -> Iterator[Any]:
        return ProbedIterator(iter(self._dataset), self._part, self._log)


class ProbedIterator:
    """A wrapper of an IterableDataset's iterator that records an event for each sample."""

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
    """A wrapper of a collate_fn that records an event for each call."""

    function: Callable[[Any], Any]
    """The collate_fn."""
    log: EventLog

    @skip_in_warnings
    def __call__(self, samples: Any) -> Any:
        """The batch that the collate_fn returns."""
        start_ns = now_ns()
        batch = self.function(samples)
        self.log.here().add(Part.COLLATE, start_ns, now_ns())
        return batch


@dataclass(frozen=True)
class ProbedCall:
    """A wrapper of a function that records an event for each call.

    Once the log has no more room for details, calls are not recorded.
    """

    function: Callable[..., Any]
    part: Part
    """The part of an epoch to which the calls belong."""
    log: EventLog

    def __getattr__(self, name: str) -> Any:
        # pickle looks up special methods before this object has its attribute `function`. Reading
        # that attribute here would then call this method again, without end.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.function, name)

    @skip_in_warnings
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        log = self.log.here()
        if not log.is_detailed:
            return self.function(*args, **kwargs)
        start_ns = now_ns()
        result = self.function(*args, **kwargs)
        log.add(self.part, start_ns, now_ns())
        return result
