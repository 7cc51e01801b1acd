"""The user's own loader: a function or a class that returns an iterable of batches."""

from __future__ import annotations

import contextlib
import multiprocessing
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, model_validator

from fastloop.core.epochs import OrderPrefix, uncut_order, whole_order
from fastloop.core.loading_settings import DECLARED, LOADING
from fastloop.core.plan import CANONICAL_COLLATE, Plan, check_honoured
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.types import BadData, Epochs, Tree, Unsupported, name_of, option
from fastloop.core.user_code import (
    call,
    check_arguments,
    check_usable,
    is_iterable,
    parameter_names,
)
from fastloop.data.dataloader import EpochSampler, end_iterators
from fastloop.data.worker_errors import name_failing_sample

PLANNED = ("seed", "rank", "world_size")
"""Fields of a plan that are passed to parameters of the same name, like the loading settings."""
OFFERED = (*LOADING, *PLANNED, "shuffle", "dataset", "sampler", "epoch", "collate_fn")


def iterable_epochs(loader: Iterable[Tree]) -> Epochs:
    """Epochs of an iterable; `set_epoch` of it, its samplers and its dataset is called."""
    parts = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    setters = [getattr(part, "set_epoch", None) for part in (loader, *parts)]

    def epochs(number: int) -> Iterable[Tree]:
        for set_epoch in setters:
            if set_epoch:
                set_epoch(number)
        return loader

    return epochs


@dataclass(frozen=True)
class TrackedEpoch:
    """An epoch that records a weak reference to its iterator, so that it can be closed."""

    batches: Iterable[Tree]
    started: list[weakref.ref[Any]]

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - len's TypeError is right

    def __iter__(self) -> Iterator[Tree]:
        iterator = iter(self.batches)
        self.started.clear()
        # A list's iterator allows no weak reference, and has nothing to close.
        with contextlib.suppress(TypeError):
            self.started.append(weakref.ref(iterator))
        return iterator


@option
class UserLoader:
    """The user's own loader, `loader._target_=package.module.name`, called in the trial's process.

    Parameters named like a setting of fastloop receive that setting. `dataset` receives the opened
    dataset, `sampler` the order of its indices, `shuffle` whether the order is random, and
    `collate_fn` the function of `collate=` unless that is the default. A target with a parameter
    `epoch` receives the epoch's number, and is called for each epoch. A setting without a parameter
    (order, batch size, workers) is up to the target.

    The target returns an iterable that is iterated once per epoch, an iterator (the target is then
    called again for each epoch), or a function from an epoch's number to its batches.

    With several ranks each rank calls the target, which must deliver that rank's shard: `sampler`
    is the shard; a target without it uses `rank` and `world_size`, or asks torch.distributed.
    Shards may differ in length, or be padded as by torch's DistributedSampler.
    """

    store: ClassVar[None] = None
    is_users: ClassVar[bool] = True
    target: Annotated[str, AfterValidator(check_usable)]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _arguments_fit(self) -> UserLoader:
        check_arguments(self.target, self.kwargs, OFFERED)
        return self

    @property
    def takes(self) -> frozenset[str]:
        """Names of the parameters that fastloop passes."""
        return (parameter_names(self.target) & set(OFFERED)) - self.kwargs.keys()

    @property
    def honours_batch_size(self) -> bool:
        """True if the target takes `batch_size`."""
        return "batch_size" in self.takes

    @property
    def brings_data(self) -> bool:
        """True if the target takes no `dataset`."""
        return "dataset" not in self.takes

    @property
    def unknown_files(self) -> str:
        """The reason why it may read any file."""
        return f"the files that {self.target} reads are not known"

    def check(self, plan: Plan) -> None:
        """Raise Unsupported for a setting other than its default that the target does not take."""
        target, takes = self.target, self.takes
        collate = (CANONICAL_COLLATE,) if "collate_fn" in takes else ()
        check_honoured(target, plan, (*takes, *collate, "multiprocessing_context"))
        order, follows_order = _order_name(plan), {"dataset", "sampler"} <= takes
        # The default of a setting that the target does not take may not have been asked for.
        if "batch_size" not in takes and plan.loading.batch_size != DECLARED["batch_size"].default:
            setting = f"batch_size={plan.loading.batch_size}"
            raise Unsupported(f"{setting}: loader={target} sets its own batch size")
        if plan.loading.drop_last and not (follows_order and "drop_last" in takes):
            raise Unsupported(
                f"drop_last=true: it is not known which samples loader={target} drops"
            )
        if isinstance(whole_order(plan), OrderPrefix) and not follows_order:
            reason = f"loader={target} sets its own order; fastloop.bench takes batches= for it"
            raise Unsupported(f"batches: {reason}")
        # If the loader has its own order, the order is judged by the delivered samples, see
        # data/sample_order.py.
        is_judged = "shuffle" in takes or not self.brings_data
        known = ("random", "sequential") if is_judged else ("random",)
        if not follows_order and order not in known:
            raise Unsupported(f"order={order}: loader={target} sets its own order")

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """Epochs of the target's batches, as `check` allows them."""
        return self.open_epochs(plan, prepared.dataset)

    @contextmanager
    def open_epochs(self, plan: Plan, dataset: Dataset | None) -> Iterator[Epochs]:
        """Yield the epochs; the dataset is opened if the target takes it.

        Raises Unsupported as `check` does.
        """
        self.check(plan)
        takes = self.takes
        samples = dataset.open() if dataset is not None and "dataset" in takes else None
        arguments = _arguments(plan, takes, samples)
        # A loader that draws its order from torch's generator repeats it for an equal seed.
        torch.manual_seed(plan.seed)
        started: list[weakref.ref[Any]] = []
        with _start_method(plan.loading.multiprocessing_context):
            loader = None if "epoch" in takes else self._call(arguments)
            epochs = partial(self._epoch, arguments, self._epochs(arguments, loader))
            try:
                with name_failing_sample(loader):
                    yield lambda number: TrackedEpoch(epochs(number), started)
            finally:
                end_iterators(loader, started)

    def _call(self, arguments: dict[str, Any]) -> Any:
        loader = call(self.target, self.kwargs | arguments)
        if not is_iterable(loader) and not callable(loader):
            kind = type(loader).__name__
            raise BadData(f"{self.target}: it returns {kind}, which is not iterable")
        return loader

    def _epochs(self, arguments: dict[str, Any], loader: Iterable[Tree] | Epochs | None) -> Epochs:
        if loader is None:
            return lambda number: self._call(arguments | {"epoch": number})
        # An iterator is good for one epoch only.
        if isinstance(loader, Iterator):
            # The iterator that the first call has returned is the first epoch; each later epoch
            # needs another call.
            first = [loader]
            return lambda _: first.pop() if first else self._call(arguments)
        # An object with __getitem__ alone is iterable, too, which its type does not tell.
        return iterable_epochs(loader) if is_iterable(loader) else loader  # pyright: ignore

    def _epoch(self, arguments: dict[str, Any], epochs: Epochs, number: int) -> Iterable[Tree]:
        if "sampler" in arguments:
            arguments["sampler"].epoch = number
        return epochs(number)


def _arguments(plan: Plan, takes: frozenset[str], samples: Samples | None) -> dict[str, Any]:
    offered = {name: getattr(plan.loading, name) for name in LOADING}
    offered |= {name: getattr(plan, name) for name in PLANNED}
    offered["shuffle"] = _order_name(plan) == "random"
    if plan.collate is not None:
        offered["collate_fn"] = plan.collate.collate
    if samples is not None:
        offered["dataset"] = samples
        offered["sampler"] = EpochSampler(plan.order, len(samples), plan.seed)
    arguments = {name: value for name, value in offered.items() if name in takes}
    if "sampler" in arguments:
        # torch's DataLoader accepts only one of the two.
        arguments.pop("shuffle", None)
    return arguments


def _order_name(plan: Plan) -> str:
    return name_of(uncut_order(whole_order(plan)))


@contextmanager
def _start_method(name: str | None) -> Iterator[None]:
    # The target's own processes start as in a plain script; a trial's default is forkserver.
    before = multiprocessing.get_start_method(allow_none=True)
    first = multiprocessing.get_all_start_methods()[0]
    multiprocessing.set_start_method(name or first, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
