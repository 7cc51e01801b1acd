"""LoaderSettings, the checked settings of a FastLoader, and warnings about those without effect."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from reprlib import repr as short_repr
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from fastloop.fastloader.batching import PiecewiseSampler
from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.columns.column import Tree

WORKER_SETTINGS = "timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers"
"""DataLoader's settings for worker processes, besides their number."""
SWITCHES = "drop_last", "pin_memory", "thread_safe", "copy", "native", "in_order"
"""Settings that are True or False."""
NOT_USED = {
    "timeout": (0, "batches are waited for without limit, and Ctrl-C ends an epoch"),
    "worker_init_fn": (
        None,
        "it is called in worker processes only; (seed, epoch, index) seeds each sample, see"
        " fastloop.sample_seed",
    ),
    "multiprocessing_context": (None, "there are threads, and no processes"),
    "persistent_workers": (
        False,
        "threads, and an IterableDataset's processes, start with each epoch",
    ),
    "pin_memory_device": ("", "device= delivers batches there, from pinned memory"),
    "in_order": (True, "batches come in order unless several threads or processes make them"),
}
"""DataLoader's parameters that may have no effect -> (default value, FastLoader's substitute in the
words of the warning)."""


@dataclass(frozen=True, kw_only=True)
class WorkerProcesses:
    """The number of processes that read a source, and DataLoader's settings for them."""

    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    persistent_workers: bool
    """True if processes stay between epochs. This has no effect on the processes of an iterable,
    which start with each epoch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderSettings:
    """The settings of a FastLoader at one moment. FastLoader's docstring describes them.

    Raises TypeError and ValueError for values that no loader uses, and for settings that exclude
    each other.
    """

    source: Tree
    batch_size: int | None
    shuffle: bool | Blocks
    sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None
    batch_sampler: Iterable[Sequence[int]] | None
    num_workers: int | None
    collate_fn: Callable[[Any], Tree] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    transform: Callable[[Tree], Tree] | None
    seed: int | None
    rank: int | None
    world_size: int | None
    num_threads: int | None
    thread_safe: bool
    copy: bool
    native: bool
    device: str | torch.device | None

    def __post_init__(self) -> None:
        _check_indices("sampler", self.sampler, "indices")
        _check_indices("batch_sampler", self.batch_sampler, "lists of indices")
        for name in ("transform", "collate_fn", "worker_init_fn"):
            _check_function(name, getattr(self, name))
        if not isinstance(self.generator, torch.Generator | None):
            value = short_repr(self.generator)
            raise TypeError(f"generator={value}: allowed are a torch.Generator and None")
        for name in SWITCHES:
            value = getattr(self, name)
            # 0 and 1 are equal to False and True, and allowed, as in DataLoader.
            if value not in (False, True, None):
                raise ValueError(f"{name}={short_repr(value)}: allowed are True and False")
        self._check_numbers()
        self._check_order()

    def _check_numbers(self) -> None:
        for name, least in (("num_workers", 0), ("num_threads", 0), ("prefetch_factor", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}={value!r}: allowed is {least} or more")
        timeout = self.timeout
        if not isinstance(timeout, Real) or not 0 <= timeout < math.inf:
            raise ValueError(f"timeout={timeout!r}: allowed are seconds, and 0 for no limit")
        seed = 0 if self.seed is None else self.seed
        # The seeds that torch.Generator.manual_seed accepts.
        if not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed={seed!r}: allowed are None and -2^63 to 2^64 - 1")
        size = self.batch_size
        if type(size) not in (int, type(None)):
            raise ValueError(f"batch_size={size!r}: allowed is 1 or more, or None")
        if size is not None and size < 1:
            raise ValueError(f"batch_size={size}: allowed is 1 or more")

    def _check_order(self) -> None:
        """Raise ValueError for settings of the order that exclude each other."""
        if not isinstance(self.shuffle, bool | Blocks):
            raise ValueError(f"shuffle={self.shuffle!r}: allowed are True, False and Blocks")
        if self.is_unbatched and self.drop_last:
            raise ValueError("drop_last with batch_size=None: drop_last needs a batch_size")
        if self.sampler is not None and self.shuffle:
            raise ValueError(f"shuffle={self.shuffle} with a sampler: the sampler sets the order")
        others = self.shuffle or self.drop_last or self.sampler is not None
        if self.batch_sampler is not None and (self.batch_size != 1 or others):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if (self.rank is None) != (self.world_size is None):
            given = f"rank={self.rank} with world_size={self.world_size}"
            raise ValueError(f"{given}: give both, or neither")

    @property
    def plain_seed(self) -> int | None:
        """The seed as an int: mixing numpy's integers would overflow, and a checkpoint of plain
        types can't hold them."""
        return None if self.seed is None else int(self.seed)

    @property
    def is_unbatched(self) -> bool:
        """True: samples are not formed into batches."""
        return self.batch_size is None

    @property
    def asks_for_lists(self) -> bool:
        """True: a BatchSampler gives lists of indices, for each of which the source itself makes a
        batch, as in DataLoader."""
        return self.batch_size is None and isinstance(self.sampler, BatchSampler)

    @property
    def user_sampler(self) -> Any:
        """The sampler of indices or of batches, if any."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def workers(self) -> WorkerProcesses | None:
        """The processes that may read the source, if any are asked for.

        num_threads asks for threads instead of processes, unless an IterableDataset is read.
        """
        is_iterable = isinstance(self.source, IterableDataset)
        if not self.num_workers or (self.num_threads is not None and not is_iterable):
            return None
        return WorkerProcesses(
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            persistent_workers=self.persistent_workers,
        )

    @property
    def is_in_order(self) -> bool:
        """True if batches are delivered in the order of their indices. None is the default."""
        return self.in_order is None or bool(self.in_order)

    @property
    def pins(self) -> bool:
        """True if batches are to be delivered in pinned memory."""
        return bool(self.pin_memory) and torch.cuda.is_available()

    @property
    def target(self) -> torch.device | None:
        """The device of the batches; None if they stay on the CPU.

        A CUDA device without an index gets the index of the current one. Raises ValueError for a
        CUDA device that torch does not see, and for a name that is not a device's.
        """
        device = self.device
        try:
            target = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError):
            allowed = "cpu, cuda, cuda:<number>, mps"
            raise ValueError(f"device={device!r}: allowed are {allowed}") from None
        if target.type == "cpu":
            return None
        if target.type != "cuda":
            return target
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (target.index or 0) >= count:
            raise ValueError(f"device={device}: torch sees {count} CUDA devices here")
        # The index is looked up here: in a new thread the current device is always the first one.
        number = torch.cuda.current_device() if target.index is None else target.index
        return torch.device("cuda", number)


SETTINGS = tuple(field.name for field in fields(LoaderSettings))
"""The names of all settings, in the order of the fields of LoaderSettings."""


def plain_number(number: Any) -> Any:
    """Convert an integer of any type, such as numpy's, to int; return anything else unchanged.

    The loader applies it to num_workers, which processes and the native core get.
    """
    return int(number) if isinstance(number, Integral) else number


def warn_of_settings(settings: LoaderSettings, used: Collection[str]) -> None:
    """Warn about given parameters of DataLoader that have no effect.

    used: those of NOT_USED that have an effect with this source.
    """
    for name, (default, instead) in NOT_USED.items():
        value = getattr(settings, name)
        if name not in used and value != default and value is not None:
            text = f"{name}={value!r} has no effect in FastLoader: {instead}"
            warnings.warn(text, UserWarning, stacklevel=3)
    # DataLoader warns of the same.
    if settings.pin_memory and not settings.pins:
        text = "pin_memory=True has no effect: there is no CUDA device"
        warnings.warn(text, UserWarning, stacklevel=3)


def _check_indices(name: str, value: Any, items: str) -> None:
    # None is tested first: between two epochs it takes 50 us to find that it satisfies no Protocol.
    if value is None:
        return
    is_iterable = isinstance(value, Iterable | PiecewiseSampler) or hasattr(value, "__getitem__")
    if isinstance(value, str | bytes) or not is_iterable:
        raise TypeError(f"{name}={short_repr(value)}: allowed are an iterable of {items} and None")


def _check_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name}={short_repr(value)}: allowed are a function and None")
