"""Parts of a DataLoader, wrapped so that whoever uses them records what it does.

The wrapped objects are pickled to workers, or inherited by them, like any other, and delegate all
else to the originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.timeline.event_log import EventLog
from fastloop.timeline.events import Stage


class ProbedDataset:
    """A dataset of either style as it is, with events. Attributes are those of the dataset."""

    def __init__(self, dataset: Any, stage: Stage, log: EventLog) -> None:
        self.__dict__.update(_dataset=dataset, _stage=stage, _log=log)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProbedDataset, (self._dataset, self._stage, self._log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # as a worker_init_fn does for an IterableDataset

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self.__dict__["_dataset"])  # for isinstance

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        start_ns = now_ns()
        item = self._dataset[index]
        self._log.here().add(self._stage, start_ns, now_ns())
        return item

    def __getitems__(self, indices: list[Any]) -> Any:
        """The argument of collate_fn, as torch's fetcher would make it without this class."""
        log, dataset = self._log.here(), self._dataset
        getitems = getattr(dataset, "__getitems__", None)
        if not getitems and log.is_detailed:
            return [self[index] for index in indices]
        start_ns = now_ns()
        samples = getitems(indices) if getitems else [dataset[index] for index in indices]
        log.add(self._stage, start_ns, now_ns())
        return samples

    def __iter__(self) -> Iterator[Any]:
        return ProbedIterator(iter(self._dataset), self._stage, self._log)


class ProbedIterator:
    """An IterableDataset's iterator with an event for each sample."""

    def __init__(self, iterator: Iterator[Any], stage: Stage, log: EventLog) -> None:
        self._iterator, self._stage, self._log = iterator, stage, log

    def __iter__(self) -> ProbedIterator:
        return self

    def __next__(self) -> Any:
        start_ns = now_ns()
        sample = next(self._iterator)
        self._log.here().add(self._stage, start_ns, now_ns())
        return sample


@dataclass(frozen=True)
class ProbedCollate:
    """A collate_fn whose end is the end of a batch."""

    function: Callable[[Any], Any]
    log: EventLog

    def __call__(self, samples: Any) -> Any:
        """The function's batch."""
        start_ns = now_ns()
        batch = self.function(samples)
        log = self.log.here()
        log.add(Stage.COLLATE, start_ns, now_ns())
        log.batch += 1
        return batch


@dataclass(frozen=True)
class ProbedCall:
    """A function with an event for each call, while there is room for details."""

    function: Callable[..., Any]
    stage: Stage
    log: EventLog

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # also while it is unpickled, before it has a function
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        log = self.log.here()
        if not log.is_detailed:
            return self.function(*args, **kwargs)
        start_ns = now_ns()
        result = self.function(*args, **kwargs)
        log.add(self.stage, start_ns, now_ns())
        return result
