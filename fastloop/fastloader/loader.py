"""The class FastLoader: torch's DataLoader with threads that prepare batches ahead of their use.

Each setting is an attribute. A program may assign to a setting between two epochs; the next epoch
then uses the new value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import Dataset

from fastloop.fastloader.batching import PiecewiseSampler
from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.checkpoint import Position, State
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
"""The default of `dataset` and `source`. It is not None, so that a given None is refused."""
DEFAULTED = (
    "batch_size",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "prefetch_factor",
    "num_threads",
)
"""Settings with a private attribute for the given value. The public attribute of the setting is a
property, and may differ from the given value."""
SETTING_ATTRIBUTES = [f"_{name}" if name in DEFAULTED else name for name in SETTINGS]
"""Names of the attributes with the given values, in the order of SETTINGS."""
read_values = attrgetter(*SETTING_ATTRIBUTES)
"""Returns the given values of a loader's settings at this moment, in the order of SETTINGS."""
REOPENING_SETTINGS = frozenset(
    (
        *WORKER_SETTINGS,
        "source",
        "native",
        "thread_safe",
        "_num_workers",
        "_num_threads",
        "_prefetch_factor",
        "_collate_fn",
        "pin_memory",
        "device",
        "in_order",
    )
)
"""Attributes of settings on the reading of the source. If a program assigns to one of them, the
source is opened again."""


class FastLoader(Generic[T_co]):
    """Batches of a tree of tensors and arrays, or of a Dataset, prepared by threads or by the loop.

    An iteration delivers the batches of one epoch. A batch is a tree of tensors, on the CPU unless
    `device` names another device. Parameters of DataLoader have the same meaning and order here;
    see DataLoader for parameters that are not listed below. If a sample raises an error, next()
    raises the error in place of the batch, and the following next() continues with the following
    batch. An index out of bounds (IndexError) ends the epoch. Batches may be kept and written to. A
    small batch that is kept also keeps the memory of its neighbours, about 1 MiB.

    Args:
        dataset: a tree (tuple, dict, table, ...) of tensors, arrays, memory maps and columns
            (`Images`, `Windows`, `converted`), all with num_samples in their first dimension and on
            the CPU; or a Dataset, an IterableDataset or a list of samples. A batch of a tree has
            the same structure, with leaves of shape (batch_size, ...).
        batch_size: number of samples in a batch; None delivers single samples.
        shuffle: True is torch.randperm's order; with more than 2^20 samples, a random permutation
            with indices computed as the epoch proceeds. `Blocks(...)` shuffles blocks of
            neighbouring rows, so that a mapped file larger than memory can be read fast.
        sampler: indices; excludes shuffle. The loop's thread reads them as the epoch proceeds.
        batch_sampler: lists of indices; excludes batch_size, shuffle, sampler and drop_last.
        num_workers: number of processes that read a Dataset, as in DataLoader. A tree or a
            thread_safe Dataset is read by this many threads instead. If num_threads is given, only
            an IterableDataset is read by processes.
        collate_fn: makes a batch of a list of samples; None: torch's default_collate.
        pin_memory: deliver batches in pinned memory, if there is a CUDA device.
        in_order: False delivers batches as soon as they are ready, so that a slow batch delays no
            other. This has an effect only with several threads of Python, or with processes that
            read a Dataset other than an IterableDataset.
        generator: generator of a shuffled order and, with seed=None, of the base seed, as in
            DataLoader.
        prefetch_factor: number of batches that each thread or process prepares ahead; the native
            core counts blocks of batches, of about 1 MiB. None: chosen automatically.
        transform: called with each batch, in the threads; a random transform of torchvision is
            called with each sample.
        seed: seeds the order, and the draws of samples and transforms (`sample_seed`). None: both
            depend on torch's generators, from which the same numbers are drawn as by DataLoader. A
            number: `epoch_seed(seed, k)` shuffles epoch k, and nothing else is drawn. If a
            generator is given, too, the order is drawn from the generator.
        rank, world_size: deliver this rank's share, as torch's DistributedSampler does. None: rank
            and size of torch.distributed's group, if any. All ranks need the same seed and
            generator state; without both the order is that of DistributedSampler's seed 0.
        num_threads: number of threads besides the loop's; 0: batches are prepared when they are
            requested. None: chosen automatically. Threads then read a Dataset once they have proved
            faster than the loop, and the loop reads an IterableDataset.
        thread_safe: True lets all threads read the same Dataset object at the same time. False:
            each of several threads has a pickled copy of the Dataset.
        copy: False delivers views of tensors and writable arrays if the order is the source's own
            (no shuffle, sampler or ranks), and without a device or pinned memory: writing to a view
            writes to the source.
        native: False reads torchvision's image folders, and datasets such as MNIST, by their own
            code, and not as `Images` and rows.
        device: device of the delivered batches, such as "cuda". The threads copy batches there from
            pinned buffers; no synchronization is needed. None: the CPU.
        source: another name of dataset.

    Raises ValueError or TypeError for settings that are invalid or exclude each other. If a
    parameter of DataLoader has no effect here, a warning names FastLoader's substitute.

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
        # The error is raised again here, so that its traceback does not show the checks' frames.
        try:
            settings = self._settings
        except (ValueError, TypeError) as error:
            raise error.with_traceback(None) from None
        self._open(settings)
        warn_of_settings(settings, settings_in_use(self._reading, self._epochs.engine))

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign to a setting, with effect on the next epoch.

        A setting in REOPENING_SETTINGS is checked here, and keeps its old value if the new one is
        invalid. Other settings are checked only when they are used, because two settings may
        exclude each other until both have been assigned.
        """
        # When __init__ assigns, the source has not been opened yet.
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
        """The settings at this moment; raises ValueError or TypeError if they are invalid."""
        return LoaderSettings(**dict(zip(SETTINGS, read_values(self), strict=True)))

    def _open(self, settings: LoaderSettings) -> None:
        """Open the source, choose its threads or processes, and make the epochs of these settings.

        Raises ValueError and TypeError for settings that are invalid with this source.
        """
        self._reading = open_reading(settings)
        # The epochs are made here, so that an invalid order raises its error now, and not when the
        # first epoch begins.
        self._last_epochs = open_epochs(settings, self._reading)

    def _follow_dataset(self) -> None:
        """Open the dataset again if it is read natively, and was changed since it was opened."""
        watch = self._reading.watch
        if watch is not None and not watch.is_current():
            name = type(watch.dataset).__name__
            log_once(f"{name} was changed after its FastLoader was made, and is opened again")
            self._open(self._settings)

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises TypeError if the sampler or the IterableDataset has no length.
        """
        return len(self._epochs.order)

    @property
    def num_samples(self) -> int | None:
        """The number of samples of the source at this moment; None if an iterable has no length."""
        return self._reading.num_samples

    @property
    def dataset(self) -> Dataset:
        """The dataset, as in DataLoader: the source itself, or a view of the samples of a tree."""
        return as_dataset(self.source)

    @property
    def sampler(self) -> Any:
        """The given sampler, or the indices of the next epoch; None for an IterableDataset.

        If a batch_sampler is given, the indices in the source's own order, as in DataLoader.
        """
        is_default = self._sampler is None and isinstance(self._epochs.order, LoaderOrder)
        return EpochIndices(self) if is_default else self._sampler

    @sampler.setter
    def sampler(self, sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None) -> None:
        self._sampler = sampler

    @property
    def batch_size(self) -> int | None:
        """The given number; None if a batch_sampler is given, as in DataLoader."""
        return self._batch_size if self._batch_sampler is None else None

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        self._batch_size = batch_size

    @property
    def batch_sampler(self) -> Any:
        """The given batch sampler, or the batches of indices of the next epoch.

        None if neither a batch sampler nor a batch_size is given.
        """
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
        """The given number, or 0; but at least 1 if a prefetch_factor is given.

        A program may make a DataLoader with the settings of this loader, and a DataLoader refuses a
        prefetch_factor without workers.
        """
        return self._num_workers or (max(1, self.num_threads) if self._prefetch_factor else 0)

    @num_workers.setter
    def num_workers(self, num_workers: int | None) -> None:
        self._num_workers = plain_number(num_workers)

    @property
    def prefetch_factor(self) -> int | None:
        """The given number; by default 2 if there are workers, as in DataLoader, otherwise None."""
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
        """The engine that makes the batches: "native" for the native core, "python" for Python.

        Only Python reads Datasets, applies transforms and copies batches to devices.
        """
        return self._epochs.engine.name

    def record_pieces(self) -> WorkTimes | None:
        """Record which thread of the native core makes which piece of the batches, and when.

        The call affects epochs that begin after it, and costs two clock readings per piece. The
        returned records serve to draw pictures. None if the core is not used.
        """
        return self._epochs.engine.record()

    @property
    def _epochs(self) -> LoaderEpochs:
        """The epochs of the present settings, made again if a setting or num_samples has changed.

        In a group of processes, the epochs are made each time, because the rank may have changed.
        Otherwise they are kept. Making them takes as long as a batch, and would delay the first
        batch of each epoch.
        """
        last = self._last_epochs
        if last is None or not last.are_of(read_values(self), self.num_samples):
            settings = self._settings
            reading = self._reading
            # The source is opened again if its length has changed, or if batch_size or the sampler
            # asks for another kind of items: single samples, batches, or lists of indices.
            if not reading.is_for(settings):
                reading = open_reading(settings)
            last = open_epochs(settings, reading)
            self._last_epochs = last
            self._reading = reading
        return last

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the settings and the position; another process opens the source itself."""
        copies = {"_reading": self._reading.copy(), "_position": self._position.copy()}
        reopened = {"_last_epochs": None, "source": pack_maps(self.source)}
        return self.__dict__ | copies | reopened

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # An assignment to `source` would open it here, before the position can be copied.
        self.__dict__["source"] = unpack_maps(self.source)
        self._reading = self._reading.reopen(self._settings)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch, and call set_epoch of the sampler.

        If `load_state_dict` has loaded a state of this epoch, the iteration continues the state.
        """
        self._position.set_epoch(epoch)
        self._epochs.randomness.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, for `load_state_dict`.

        The state contains the epoch, the number of its delivered batches, the random states at its
        start, and the settings of the order. All ranks may load the state of one rank. If the loop
        has left an epoch early, the state is the position at which the loop has left the epoch.

        Raises ValueError with in_order=False: the number of delivered batches does not say which
        ones were delivered.
        """
        if not self._settings.is_in_order:
            reason = "a state counts the batches of an epoch in order"
            raise ValueError(f"state_dict with in_order=False: {reason}; allowed: in_order=True")
        state = self._position.current() or self._epochs.waiting_state(self.epoch)
        return state.to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state: the next iteration delivers the rest of the state's epoch.

        Raises ValueError for the state of a loader with another batch_size, drop_last, num_samples,
        seed, shuffle or world_size.
        """
        self._position.load(State.read(state, self._epochs.order))

    def __iter__(self) -> Iterator[Tree]:
        """Start an epoch, and return an iterator over its batches.

        The threads of an epoch end with the epoch, even if the loop leaves it early. After a whole
        epoch, the threads of the native core wait for the next epoch for a second.
        """
        self._follow_dataset()
        epochs = self._epochs
        position = self._position
        loaded = position.states_to_restore
        progress = position.begin(partial(epochs.begin_state, position.epoch))
        batches = epochs.start(progress, loaded, partial(position.finish, progress))
        # The position advances last. If an epoch fails to begin, the next iteration is of the same
        # epoch.
        position.advance(progress)
        return batches

    def index_batches(self) -> Iterator[list[int]]:
        """The indices of each batch of the next epoch; raises TypeError for an IterableDataset.

        With seed=None the indices are drawn as the batch sampler of a DataLoader draws them.
        """
        return self._batches_of(self._epochs.order)

    def _batches_of(self, order: EpochOrder) -> Iterator[list[int]]:
        """The batches of the next epoch's indices in this order."""
        if isinstance(order, LoaderOrder) and order.follows_dataloader:
            drawn = self._position.states_to_restore or {}
            return draw_batches(order, drawn.get(ORDER_SEED))
        seed = self.epoch if order.seed is None else epoch_seeds(order.seed, self.epoch).order
        return (batch.tolist() for batch in order.batches(seed))


def _choose_dataset(dataset: Tree, source: Tree) -> Tree:
    """The given argument of the two; raises TypeError if both are given, or neither is."""
    if (dataset is NOT_GIVEN) == (source is NOT_GIVEN):
        given = "neither is" if dataset is NOT_GIVEN else "both are"
        raise TypeError(f"FastLoader takes a dataset, also as source=; {given} given")
    return source if dataset is NOT_GIVEN else dataset
