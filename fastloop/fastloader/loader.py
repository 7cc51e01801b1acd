"""The class FastLoader: torch's DataLoader with threads that prepare batches ahead of their use.

Each setting is an attribute. A program may assign to a setting between two epochs; the next epoch
then uses the new value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import Dataset

from fastloop.fastloader.batching import PiecewiseSampler
from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.checkpoint import Position, check_settings
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.columns.mapped_file import pack_maps, unpack_maps
from fastloop.fastloader.epoch_engines import settings_in_use
from fastloop.fastloader.iterable_source import shuffle_pipe
from fastloop.fastloader.loader_attributes import EpochBatches, EpochIndices, collation
from fastloop.fastloader.loader_epochs import LoaderEpochs, open_epochs
from fastloop.fastloader.loader_settings import (
    SETTINGS,
    WORKER_SETTINGS,
    LoaderSettings,
    plain_number,
    warn_of_settings,
)
from fastloop.fastloader.native_stream import WorkTimes
from fastloop.fastloader.open_source import as_dataset
from fastloop.fastloader.order import EpochOrder, LoaderOrder
from fastloop.fastloader.paced_samplers import draw_batches
from fastloop.fastloader.reading import open_reading
from fastloop.fastloader.recognise_image_folders import log_once
from fastloop.fastloader.thread_access import CollateFn
from fastloop.fastloader.torch_draws import ORDER_SEED, epoch_seeds

T_co = TypeVar("T_co", covariant=True)
NOT_GIVEN: Any = object()
"""The default of `dataset` and `source`. It is not None, because None is refused as a source."""
DEFAULTED = (
    "batch_size",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "prefetch_factor",
    "num_threads",
)
"""Settings that are kept as private attributes. If such a setting is None, the public attribute of
its name has the value that the loader uses instead."""
SETTING_ATTRIBUTES = [f"_{name}" if name in DEFAULTED else name for name in SETTINGS]
read_values = attrgetter(*SETTING_ATTRIBUTES)
"""The values of a loader's settings as they are now, in the order of SETTINGS."""
REOPENING_SETTINGS = frozenset(
    (
        *WORKER_SETTINGS,
        "_num_workers",
        "_num_threads",
        "_prefetch_factor",
        "_collate_fn",
        "pin_memory",
        "device",
        "in_order",
    )
)
"""Attributes of settings that say how the source is read: it is opened again when one of them is
assigned to."""


class FastLoader(Generic[T_co]):
    """Batches of a tree of tensors and arrays, or of a Dataset, prepared by threads or by the loop.

    An iteration delivers the batches of one epoch, each a tree of CPU tensors unless `device` says
    otherwise. Parameters that DataLoader also has keep its meaning and order; see DataLoader for
    parameters that are not listed here. If a sample raises an error, next() raises the error in
    place of the batch, and the next call continues with the following batch; an index out of bounds
    (IndexError) ends the epoch. Batches may be kept and written to; a small batch that is kept also
    keeps the memory of its neighbours, about 1 MiB.

    Args:
        dataset: a tree (tuple, dict, table, ...) of tensors, arrays, memory maps and columns
            (`Images`, `Windows`, `converted`), all with num_samples in their first dimension and on
            the CPU; or a Dataset, an IterableDataset or a list of samples. A batch of a tree has
            the same structure, with leaves of shape (batch_size, ...).
        batch_size: None delivers single samples.
        shuffle: True is torch.randperm's order; with more than 2^20 samples, a random permutation
            with indices computed as the epoch proceeds. `Blocks(...)` shuffles blocks of
            neighbouring rows, so that a mapped file larger than memory can be read fast.
        sampler: indices; excludes shuffle. Read as the epoch proceeds, in the loop's thread.
        batch_sampler: lists of indices; excludes batch_size, shuffle, sampler and drop_last.
        num_workers: processes that read a Dataset, as in DataLoader. A tree or a thread_safe
            Dataset is read by this many threads instead. It has no effect if num_threads is given,
            except on an IterableDataset.
        collate_fn: makes a batch of a Dataset's samples; by default torch's default_collate.
        pin_memory: deliver batches in pinned memory, if there is a CUDA device.
        in_order: False delivers batches as soon as they are ready, so that a slow one delays no
            other. It has an effect only with processes, or several threads of Python.
        generator: draws a shuffled order, and with seed=None the base seed, as in DataLoader.
        prefetch_factor: batches to prepare ahead for each thread; the native core counts blocks of
            batches of about 1 MiB. None chooses.
        transform: called with each batch, in the threads; random transforms of torchvision are
            called with each sample.
        seed: seeds the order, and the draws of samples and transforms (`sample_seed`). None: both
            follow torch's generators, as DataLoader's order does, and the same numbers are drawn.
            A number: epoch k is shuffled with `epoch_seed(seed, k)`, and nothing else is drawn.
        rank, world_size: deliver this rank's share, as torch's DistributedSampler does. None: rank
            and size of torch.distributed's group, if any. All ranks need the same seed and
            generator state; without both the order is that of DistributedSampler's seed 0.
        num_threads: threads besides the loop's; 0 prepares batches when they are requested. None:
            chosen automatically; a Dataset is read by threads once that has proved faster, and an
            IterableDataset by the loop.
        thread_safe: True lets all threads read the one Dataset at the same time; otherwise each of
            several threads has a pickled copy of it.
        copy: False delivers views of tensors and writable arrays if the order is the source's own
            (no shuffle, sampler, ranks or device): writing to one writes to the source.
        native: False reads torchvision's image folders, and datasets such as MNIST, as they are
            written, not as `Images` and rows.
        device: device of the delivered batches, such as "cuda". The threads copy them there from
            pinned buffers; no synchronization is needed. None: the CPU.
        source: another name of dataset.

    Raises ValueError or TypeError for settings that are invalid or exclude each other. A warning
    names FastLoader's substitutes for DataLoader's other parameters.

    >>> loader = FastLoader((images, labels), batch_size=256, shuffle=True, device="cuda")
    >>> len(loader)
    235
    >>> for images, labels in loader:  # (256, 28, 28) and (256,), on the GPU
    ...     loss = criterion(model(images), labels)
    """

    def __init__(  # noqa: PLR0913, PLR0917 - DataLoader's parameters, and those of its threads
        self,
        dataset: Tree = NOT_GIVEN,
        batch_size: int | None = 1,
        shuffle: bool | Blocks | None = None,
        sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int | None = None,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: Callable[[Tree], Tree] | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
        thread_safe: bool = False,
        copy: bool = True,
        native: bool = True,
        device: str | torch.device | None = None,
        source: Tree = NOT_GIVEN,
    ) -> None:
        source, shuffle = shuffle_pipe(_choose_dataset(dataset, source), shuffle)
        self.source, self.device = source, device
        self._batch_size, self.drop_last = batch_size, drop_last
        self.shuffle, self._sampler, self._batch_sampler = shuffle or False, sampler, batch_sampler
        self._collate_fn, self.transform, self.generator = collate_fn, transform, generator
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._num_workers, self._prefetch_factor = plain_number(num_workers), prefetch_factor
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.persistent_workers, self.in_order = persistent_workers, in_order
        self._num_threads, self.thread_safe = num_threads, thread_safe
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.copy, self.native, self._position = copy, native, Position()
        # Raised from here, so that a traceback does not show the frames of the checks.
        try:
            settings = self._settings
        except (ValueError, TypeError) as error:
            raise error.with_traceback(None) from None
        self._open(settings)
        warn_of_settings(settings, settings_in_use(self._reading, self._epochs.engine))

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign to a setting, with effect on the next epoch.

        If a value of a setting in REOPENING_SETTINGS is invalid, the setting keeps its old value.
        Other settings are checked when they are used, because two settings may exclude each other
        until both have been assigned.
        """
        # __init__ assigns before the source is opened for the first time.
        if name not in REOPENING_SETTINGS or "_reading" not in self.__dict__:
            super().__setattr__(name, value)
            return
        # Opening assigns to several attributes, and may fail halfway.
        before = dict(self.__dict__)
        try:
            super().__setattr__(name, value)
            self._open(self._settings)
        except BaseException:
            self.__dict__.update(before)
            raise

    @property
    def _settings(self) -> LoaderSettings:
        """The settings as they are now, checked."""
        return LoaderSettings(**dict(zip(SETTINGS, read_values(self), strict=True)))

    def _open(self, settings: LoaderSettings) -> None:
        """Open the source, choose who reads it, and make the epochs of these settings.

        Raises ValueError and TypeError for settings that are invalid with this source.
        """
        self._reading = open_reading(settings)
        # The epochs are made here, because an invalid order then raises its error now and not when
        # the first epoch begins.
        self._last_epochs = open_epochs(settings, self._reading)

    def _follow_dataset(self) -> None:
        """Open the dataset again if it is read natively, and was changed since it was opened."""
        watch = self._reading.watch
        if watch is not None and not watch.is_current():
            name = type(watch.dataset).__name__
            log_once(f"{name} was changed after its FastLoader was made, and is opened again")
            self._open(self._settings)

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError if a sampler has no length."""
        return len(self._epochs.order)

    @property
    def num_samples(self) -> int | None:
        """The number of samples, as the source says now; None if an iterable does not say."""
        return self._reading.num_samples

    @property
    def dataset(self) -> Dataset:
        """A map-style dataset of the samples, as DataLoader's: the source, or a view of a tree."""
        return as_dataset(self.source)

    @property
    def sampler(self) -> Any:
        """The given sampler, or the indices of the next epoch; None for an IterableDataset."""
        is_default = self._sampler is None and isinstance(self._epochs.order, LoaderOrder)
        return EpochIndices(self) if is_default else self._sampler

    @sampler.setter
    def sampler(self, sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None) -> None:
        self._sampler = sampler

    @property
    def batch_size(self) -> int | None:
        """The given number, or None with a batch_sampler, as in DataLoader."""
        return self._batch_size if self._batch_sampler is None else None

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        self._batch_size = batch_size

    @property
    def batch_sampler(self) -> Any:
        """The given batch sampler, or the batches of indices of the next epoch; None with
        batch_size=None."""
        if self._batch_sampler is None and self._batch_size is not None:
            return EpochBatches(self)
        return self._batch_sampler

    @property
    def collate_fn(self) -> CollateFn:
        """A function from samples of `dataset` to a batch."""
        is_unbatched = self._batch_size is None
        return collation(self._collate_fn, self.transform, self.dataset, is_unbatched)

    @collate_fn.setter
    def collate_fn(self, collate_fn: CollateFn | None) -> None:
        self._collate_fn = collate_fn

    @property
    def num_workers(self) -> int:
        """The given number, but at least 1 if a prefetch_factor is given: a DataLoader that is made
        of this loader's settings refuses a prefetch_factor without workers.
        """
        return self._num_workers or (max(1, self.num_threads) if self._prefetch_factor else 0)

    @num_workers.setter
    def num_workers(self, num_workers: int | None) -> None:
        self._num_workers = plain_number(num_workers)

    @property
    def prefetch_factor(self) -> int | None:
        """The given number; by default 2 with num_workers, as in DataLoader, else None."""
        return self._prefetch_factor or (2 if self._num_workers else None)

    @prefetch_factor.setter
    def prefetch_factor(self, prefetch_factor: int | None) -> None:
        self._prefetch_factor = prefetch_factor

    @property
    def num_threads(self) -> int:
        """The number of threads besides the loop's."""
        return self._reading.pipeline.tuning.num_threads

    @num_threads.setter
    def num_threads(self, num_threads: int | None) -> None:
        self._num_threads = num_threads

    @property
    def epoch(self) -> int:
        """The number of the next iteration's epoch."""
        return self._position.epoch

    @property
    def engine(self) -> str:
        """The engine that makes the batches: "native" is the native core, "python" are threads of
        Python, which also apply transforms, read Datasets and copy to devices."""
        return self._epochs.engine.name

    def record_pieces(self) -> WorkTimes | None:
        """Record which thread of the native core makes which piece of the batches, and when.

        This applies to epochs that begin after this call, and costs two clock readings per piece.
        The records serve to draw pictures. None if the core is not used.
        """
        return self._epochs.engine.record()

    @property
    def _epochs(self) -> LoaderEpochs:
        """The epochs of the present settings, made again if a setting or num_samples has changed.

        In a group of processes they are made each time, because the rank may have changed.
        Otherwise they are kept: making them takes as long as a batch, and the first batch of an
        epoch would wait for it.
        """
        last = self._last_epochs
        if last is None or not last.are_of(read_values(self), self.num_samples):
            settings = self._settings
            reading = self._reading
            # The source is opened again if batch_size or the sampler asks for another kind of items
            # (samples, batches or lists), or if the length of the dataset has changed.
            if not reading.is_for(settings):
                reading = open_reading(settings)
            last = open_epochs(settings, reading)
            self._last_epochs = last
            self._reading = reading
        return last

    def __getstate__(self) -> dict[str, Any]:
        """Pickle settings and position; another process opens source, threads and buffers again."""
        copies = {"_reading": self._reading.copy(), "_position": self._position.copy()}
        reopened = {"_last_epochs": None, "source": pack_maps(self.source)}
        return self.__dict__ | copies | reopened

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.source = unpack_maps(self.source)
        self._reading = self._reading.reopen(self._settings)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch, and call set_epoch of the sampler.

        A loaded state of this epoch is kept.
        """
        self._position.set_epoch(epoch)
        self._epochs.randomness.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, for `load_state_dict`.

        The state holds the epoch, the number of its delivered batches, the random states at its
        start, and the order's settings. All ranks may load the state of one rank. After an epoch
        that was left early, the state is the position at which the loop left it.

        Raises ValueError with in_order=False: the number of delivered batches does not say which
        ones were delivered.
        """
        if not self._settings.is_in_order:
            reason = "a state counts the batches of an epoch in order"
            raise ValueError(f"state_dict with in_order=False: {reason}; allowed: in_order=True")
        return self._position.current() or self._epochs.waiting_state(self.epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume: the next iteration delivers the rest of the epoch that the state is from.

        Raises ValueError for the state of a loader with another batch_size, drop_last, num_samples,
        seed, shuffle or world_size.
        """
        check_settings(state, self._epochs.order)
        self._position.load(state)

    def __iter__(self) -> Iterator[Tree]:
        """Start an epoch, and return an iterator over its batches.

        The epoch's threads end with it, even if the loop leaves it early. After a whole epoch, the
        native core's threads wait a second for the next epoch.
        """
        self._follow_dataset()
        epochs = self._epochs
        position = self._position
        state, drawn_from = position.begin(partial(epochs.begin_state, position.epoch))
        batches = epochs.start(state, drawn_from, partial(position.finish, state))
        # This comes last: if an epoch fails to begin, the next iteration tries the same epoch.
        position.advance(state)
        return batches

    def index_batches(self) -> Iterator[list[int]]:
        """The indices of each batch of the next epoch; TypeError for an IterableDataset.

        With seed=None they are drawn as the batch sampler of a DataLoader draws them.
        """
        return self._batches_of(self._epochs.order)

    def _single_indices(self) -> Iterator[int]:
        """The indices of the next epoch one by one, as a DataLoader's sampler gives them.

        They include the indices of a batch that drop_last drops.
        """
        return chain.from_iterable(self._batches_of(self._whole_order))

    def _num_indices(self) -> int:
        """The number of indices that `_single_indices` yields."""
        order = self._whole_order
        return order.rank_share(order.num_samples)

    @property
    def _whole_order(self) -> LoaderOrder:
        """The order with the indices of a batch that drop_last drops."""
        order = self._epochs.order
        assert isinstance(order, LoaderOrder)
        return replace(order, batch_sampler=None, drop_last=False)

    def _batches_of(self, order: EpochOrder) -> Iterator[list[int]]:
        """The batches of the next epoch's indices in this order."""
        if isinstance(order, LoaderOrder) and order.follows_dataloader:
            return draw_batches(order, self._position.read_loaded(ORDER_SEED))
        seed = self.epoch if order.seed is None else epoch_seeds(order.seed, self.epoch).order
        return (batch.tolist() for batch in order.batches(seed))


def _choose_dataset(dataset: Tree, source: Tree) -> Tree:
    """The argument that is given; raises TypeError if both are, or neither is."""
    if (dataset is NOT_GIVEN) == (source is NOT_GIVEN):
        given = "neither is" if dataset is NOT_GIVEN else "both are"
        raise TypeError(f"FastLoader takes a dataset, also as source=; {given} given")
    return source if dataset is NOT_GIVEN else dataset
