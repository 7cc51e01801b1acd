"""Times of the samples of one batch, and of their transforms, by stand-ins for as long as it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.explain.attach.records import UNKNOWN

MOST_WRAPPED = 4
"""Datasets around a dataset, such as Subset, through which a transform is looked for."""
TRANSFORMS = ("transform", "transforms")
"""Names under which torchvision's datasets, and those modelled on them, keep a transform."""


@dataclass
class SampleTimes:
    """The samples of a batch, in the order in which they were fetched."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    transform_ns: int = UNKNOWN
    """Time in the dataset's transform; UNKNOWN: it has none that can be told apart."""
    start_ns: int = 0

    @property
    def dataset_ns(self) -> int:
        """Time in the dataset, with its transform; UNKNOWN where batches are fetched whole."""
        return sum(stop - start for start, stop in self.spans) if self.spans else UNKNOWN


@contextmanager
def time_samples(fetcher: Any) -> Iterator[SampleTimes]:
    """The times of what the fetcher does in the context."""
    times = SampleTimes()
    holder = _find_transforms(fetcher.dataset)
    names = {name: value for name, value in vars(holder).items() if name in TRANSFORMS and value}
    iterator = getattr(fetcher, "dataset_iter", None)
    dataset = fetcher.dataset
    if names:
        times.transform_ns = 0
        vars(holder).update({name: TimedTransform(value, times) for name, value in names.items()})
    if iterator is not None:
        fetcher.dataset_iter = TimedIterator(iterator, times)
    elif fetcher.auto_collation:
        fetcher.dataset = TimedDataset(dataset, times)
    try:
        yield times
    finally:
        fetcher.dataset = dataset
        if iterator is not None:
            fetcher.dataset_iter = iterator
        vars(holder).update(names)


def _find_transforms(dataset: Any) -> Any:
    """The dataset, or the one inside of it, that has a transform."""
    for _ in range(MOST_WRAPPED):
        names = getattr(dataset, "__dict__", None)
        if names is None:
            break
        if any(callable(names.get(name)) for name in TRANSFORMS):
            return dataset
        dataset = names.get("dataset")
    return _Empty()


class _Empty:
    """Stands for a dataset without a transform."""


class TimedDataset:
    """A dataset whose samples are timed; all else is the dataset's."""

    def __init__(self, dataset: Any, times: SampleTimes) -> None:
        self._dataset = dataset
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: Any) -> Any:
        start_ns = now_ns()
        sample = self._dataset[index]
        self._times.spans.append((start_ns, now_ns()))
        return sample


class TimedIterator:
    """An IterableDataset's iterator whose samples are timed."""

    def __init__(self, iterator: Any, times: SampleTimes) -> None:
        self._iterator = iterator
        self._times = times

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        start_ns = now_ns()
        sample = next(self._iterator)
        self._times.spans.append((start_ns, now_ns()))
        return sample


class TimedTransform:
    """A transform whose calls are timed; all else is the transform's."""

    def __init__(self, transform: Callable[..., Any], times: SampleTimes) -> None:
        self._transform = transform
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transform, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The transform's result."""
        start_ns = now_ns()
        result = self._transform(*args, **kwargs)
        self._times.transform_ns += now_ns() - start_ns
        return result
