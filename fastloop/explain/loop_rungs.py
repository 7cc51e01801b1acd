"""Build the rungs of a user's loop, each of which is the loop without some of its parts.

Ready batches or samples, which are in memory, replace the parts that a rung lacks. `explain_loop`
times an epoch of each rung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeGuard, cast

import torch
from torch.utils.data import DataLoader, IterableDataset  # noqa: TID251 - it copies the user's

from fastloop.core.device_time import synchronize
from fastloop.core.loading_settings import worker_settings
from fastloop.core.move_tensors import map_tensors
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.trees import read_bytes, tree_leaves
from fastloop.core.types import Epochs, Tree
from fastloop.data.torch_epochs import identity_collate
from fastloop.explain.epoch_parts import work_of
from fastloop.explain.ready_data import MOST_READY, ReadyBatches, ReadySamples, make_samples
from fastloop.explain.rung_passes import EpochTimes, consume_epoch, summarize_epochs
from fastloop.options.loader.user import iterable_epochs

LoopStep = Callable[[Tree], Any]
"""A function that is called with each batch of a loop."""
LoaderOrFunction = Iterable[Tree] | Callable[..., Iterable[Tree]]
"""The loader of a loop, or a function that returns an iterable of batches for each epoch."""


@dataclass(frozen=True, kw_only=True)
class UserLoop:
    """A user's loader and step, with ready batches that the lower rungs repeat."""

    epochs: Epochs
    """Function from the number of an epoch to the batches of the user's loader."""
    step: LoopStep
    device: torch.device
    """Device of the step."""
    host: list[Tree]
    """The ready batches, as the loader delivered them."""
    batches: int
    """Number of batches of an epoch in each pass."""

    def receive(self, batch: Tree) -> None:
        """Move the batch to the device or, on the CPU, read its bytes, as any step does first.

        Without this, bytes that are still in a mapped file would not be read.
        """
        if self.device.type != "cpu":
            _move(batch, self.device)
            return
        for leaf in tree_leaves(batch):
            if isinstance(leaf, torch.Tensor) and _is_plain(leaf):
                read_bytes(leaf)

    def time(self, epoch: Iterable[Tree], step: LoopStep) -> EpochTimes:
        """Times of the first `self.batches` batches of an epoch, with this step on each."""
        synchronize(self.device)
        start_ns = now_ns()
        waits = consume_epoch(_first(epoch, self.batches), step)
        synchronize(self.device)
        return summarize_epochs([waits], seconds_between(start_ns, now_ns()))

    def repeat(self, batches: list[Tree]) -> Iterator[Tree]:
        """An epoch of `self.batches` batches that repeats these batches."""
        return (batches[place % len(batches)] for place in range(self.batches))


def _move(batch: Tree, device: torch.device) -> Tree:
    """The batch with all of its tensors on the device."""
    return map_tensors(lambda leaf: leaf.to(device), batch)


def _is_plain(leaf: torch.Tensor) -> bool:
    """True for a tensor with bytes on the host that numpy can read."""
    is_dense = leaf.layout is torch.strided and not (leaf.is_nested or leaf.is_quantized)
    return is_dense and leaf.device.type == "cpu" and not (leaf.requires_grad or leaf.is_conj())


def _first(epoch: Iterable[Tree], count: int) -> Iterator[Tree]:
    """The first `count` batches of an epoch; the epoch's iterator is deleted after them."""
    iterator = iter(epoch)
    yield from islice(iterator, count)
    # Deleting the iterator ends the workers of the epoch within the time of the epoch.
    del iterator


def rung_openers(
    loop: UserLoop, loader: LoaderOrFunction
) -> dict[Part, Callable[[int], Iterable[Tree]]]:
    """Rung -> function from the number of an epoch to its batches, lowest rung first.

    loader: the user's loader, from which loop.epochs was made.
    """
    on_cpu = loop.device.type == "cpu"
    resident = loop.host if on_cpu else [_move(each, loop.device) for each in loop.host]
    openers: dict[Part, Callable[[int], Iterable[Tree]]] = {
        Part.STEP: lambda _: loop.repeat(resident)
    }
    # The step itself moves its batch to the device. So COPY is the step on batches that are not
    # there yet; on the CPU there is nothing to copy.
    if not on_cpu:
        openers[Part.COPY] = lambda _: loop.repeat(loop.host)
    if not _can_be_divided(loader):
        return {**openers, Part.UNATTRIBUTED: loop.epochs}
    for rung, substitute in _make_substitutes(loop, loader).items():
        openers[rung] = iterable_epochs(substitute)
    return {**openers, Part.DECODE: loop.epochs}


def _can_be_divided(loader: LoaderOrFunction) -> TypeGuard[DataLoader]:
    """True for a DataLoader that collates samples of a Dataset with indices.

    Only such a loader can run with ready samples or batches in place of its parts.
    """
    # A subclass of DataLoader may load in another way than its settings say.
    return (
        isinstance(loader, DataLoader)
        and type(loader) is DataLoader
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )


def loader_like(
    loader: DataLoader, dataset: Any, collate_fn: Any, num_workers: int | None = None
) -> DataLoader:
    """A DataLoader of this dataset and collate_fn, with the sampler and the settings of `loader`.

    num_workers: number of workers; None: the number of `loader`.
    """
    # If there are no workers, DataLoader refuses or ignores the arguments of these names.
    workers = loader.num_workers if num_workers is None else num_workers
    names = ("timeout", "worker_init_fn", "in_order", *worker_settings(prefetches_by_process=False))
    of_workers = {name: getattr(loader, name) for name in names}
    return DataLoader(
        dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=collate_fn,
        num_workers=workers,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
        **(of_workers if workers else {}),
    )


def _make_substitutes(loop: UserLoop, loader: DataLoader) -> dict[Part, DataLoader]:
    """Copies of the loader for two rungs: over ready batches, and over ready samples."""
    # The ready samples are the samples of the sampler's first batches, and not the first of the
    # dataset, because a sampler may choose some samples more often than others.
    sampler = cast("Any", loader.batch_sampler)
    dataset = cast("Any", loader.dataset)
    indices = [index for batch in islice(sampler, MOST_READY) for index in batch]
    samples = ReadySamples(make_samples(dataset, indices), len(dataset))
    batches = ReadyBatches(loop.host, len(dataset))
    return {
        Part.HAND_OFF: loader_like(loader, batches, identity_collate),
        Part.COLLATE: loader_like(loader, samples, loader.collate_fn),
    }


def measure_work(loop: UserLoop, loader: DataLoader, whole_batches: int) -> dict[Part, float]:
    """Part -> its seconds in an epoch without workers; empty if the parts can't be measured.

    whole_batches: number of batches in a whole epoch.
    """
    if not _can_be_divided(loader):
        return {}
    bare = loader_like(loader, loader.dataset, loader.collate_fn, num_workers=0)
    openers = rung_openers(loop, bare) | {Part.DECODE: iterable_epochs(bare)}
    times = {rung: loop.time(open_epoch(0), loop.step) for rung, open_epoch in openers.items()}
    return work_of(times, whole_batches)


def rung_notes(loader: LoaderOrFunction, openers: Mapping[Part, object]) -> list[str]:
    """Notes for the user on parts that the ladder of this loader can't tell apart.

    openers: the result of `rung_openers`, of which only the keys are used.
    """
    if Part.UNATTRIBUTED not in openers:
        return ["decode is all that the dataset does: it can't be told apart from reading"]
    kind = type(loader).__name__
    return [
        f"the parts of a {kind} can't be measured: only a DataLoader with a batch sampler can be "
        "taken apart"
    ]
