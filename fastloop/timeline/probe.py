"""A probe of a DataLoader: what is handed to it, wrapped so that every process records its work.

DataLoader itself is not changed. The wrapped objects are pickled to workers, or inherited by them,
like any other, and delegate all else to the originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe, default_collate

from fastloop.core.spans import now_ns
from fastloop.timeline.event_log import EventLog
from fastloop.timeline.events import Stage


@dataclass(frozen=True)
class Probe:
    """Wraps the parts of a DataLoader; plain data."""

    log: EventLog
    fetch: Stage = Stage.DECODE
    """The stage of fetching samples from the dataset."""

    def wrap_dataset(self, dataset: Any) -> Any:
        """The dataset with an event for each fetch; a datapipe, whose graph torch takes apart,
        unchanged."""
        is_pipe = isinstance(dataset, IterDataPipe | MapDataPipe)
        return dataset if is_pipe else ProbedDataset(dataset, self)

    def wrap_collate(self, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """The function, torch's default_collate for None, with an event for each batch."""
        return ProbedCollate(collate_fn or default_collate, self.log)

    def wrap_read(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """The dataset's function that reads a file, with an event for each call in the fetch."""
        return ProbedCall(read, Stage.READ, self.log)

    def wrap_transform(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a sample, with an event for each call in the fetch."""
        return ProbedCall(transform, Stage.TRANSFORM, self.log)


@contextmanager
def insert_probe(loader: Any, probe: Probe) -> Iterator[None]:
    """A context in which epochs of the DataLoader that begin are probed; `iter(loader)` in it.

    The loader has its own dataset and collate_fn again afterwards.
    """
    original = {name: loader.__dict__[name] for name in ("dataset", "collate_fn")}
    dataset = probe.wrap_dataset(loader.dataset)
    # DataLoader refuses to set its dataset, which an iterator takes from it
    loader.__dict__.update(dataset=dataset, collate_fn=probe.wrap_collate(loader.collate_fn))
    try:
        yield
    finally:
        loader.__dict__.update(original)


class ProbedDataset:
    """A dataset of either style as it is, with events. Attributes are those of the dataset."""

    def __init__(self, dataset: Any, probe: Probe) -> None:
        self.__dict__.update(_dataset=dataset, _probe=probe)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProbedDataset, (self._dataset, self._probe)

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
        self._probe.log.here().add(self._probe.fetch, start_ns, now_ns())
        return item

    def __getitems__(self, indices: list[Any]) -> Any:
        """The argument of collate_fn, as torch's fetcher would make it without this class."""
        log, dataset, stage = self._probe.log.here(), self._dataset, self._probe.fetch
        getitems = getattr(dataset, "__getitems__", None)
        if not getitems and log.is_detailed:
            return [self[index] for index in indices]
        start_ns = now_ns()
        samples = getitems(indices) if getitems else [dataset[index] for index in indices]
        log.add(stage, start_ns, now_ns())
        return samples

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self._dataset)
        while True:
            start_ns = now_ns()
            try:
                sample = next(samples)
            except StopIteration:
                return
            self._probe.log.here().add(self._probe.fetch, start_ns, now_ns())
            yield sample


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
        log.end_batch()
        return batch


@dataclass(frozen=True)
class ProbedCall:
    """A function with an event for each call, while there is room for details."""

    function: Callable[..., Any]
    stage: Stage
    log: EventLog

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        log = self.log.here()
        if not log.is_detailed:
            return self.function(*args, **kwargs)
        start_ns = now_ns()
        result = self.function(*args, **kwargs)
        log.add(self.stage, start_ns, now_ns())
        return result
