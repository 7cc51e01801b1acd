"""A loader of one's own: a function or a class that gives batches, or anything to iterate over."""

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

from fastloop.catalogue import default_of
from fastloop.own import called, check_arguments, is_iterable, parameters, usable
from fastloop.plans import honours_only, whole_order
from fastloop.protocols import Dataset, Samples
from fastloop.torch_loader import EpochSampler, end_iterators, failures_named
from fastloop.types import BadData, Epochs, Plan, Prepared, Tree, Unsupported, option

SETTINGS = (
    *("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers"),
    *("multiprocessing_context", "drop_last", "seed", "rank", "world_size"),
)
"""Of a plan: a parameter of that name gets it."""
OFFERED = (*SETTINGS, "shuffle", "dataset", "sampler", "epoch")
ITS_OWN = "its own"
"""In the place of batch_size, of a loader that has no parameter for it."""


def epochs_of(loader: Iterable[Tree]) -> Epochs:
    """Epochs of something to iterate over; `set_epoch` of it, of its samplers and of its dataset is
    called."""
    parts = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    told = [getattr(one, "set_epoch", None) for one in (loader, *parts)]

    def epochs(number: int) -> Iterable[Tree]:
        for set_epoch in told:
            if set_epoch:
                set_epoch(number)
        return loader

    return epochs


@dataclass(frozen=True)
class Noted:
    """An epoch whose iterator is noted when it starts, so that it can be ended."""

    batches: Iterable[Tree]
    started: list[weakref.ref[Any]]

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - its TypeError tells as much

    def __iter__(self) -> Iterator[Tree]:
        iterator = iter(self.batches)
        self.started.clear()
        with contextlib.suppress(TypeError):  # a list's can't be referred to, and has no end
            self.started.append(weakref.ref(iterator))
        return iterator


@option
class OwnLoader:
    """`loader._target_=package.module.name`, called in the trial's process.

    A parameter that has the name of one of fastloop's settings gets that setting; `dataset` gets
    the opened dataset, `sampler` its order, `shuffle` whether that is random, `epoch` the number of
    the epoch, for each of which it is then called. What has no parameter is its own: order, size of
    the batches, workers. Of several ranks each calls it: `sampler` is the rank's share, and so must
    be what one delivers that takes `rank` and `world_size`, or asks torch.distributed; shares may
    differ in length, or be filled up as torch's DistributedSampler fills them. It gives something
    to iterate over once an epoch, an iterator, for which it is called anew in every epoch, or a
    function from the number of an epoch to its batches.
    """

    store: ClassVar[None] = None
    target: Annotated[str, AfterValidator(usable)]
    kwargs: dict[str, Any]

    @model_validator(mode="after")
    def _arguments_fit(self) -> OwnLoader:
        check_arguments(self.target, self.kwargs, OFFERED)
        return self

    @property
    def takes(self) -> frozenset[str]:
        """Those parameters that fastloop gives a value to."""
        return (parameters(self.target) & set(OFFERED)) - self.kwargs.keys()

    def check(self, plan: Plan) -> None:
        """Raise Unsupported for a setting that it has no parameter for and is not its default."""
        target, takes = self.target, self.takes
        honours_only(target, plan, *takes, "multiprocessing_context")
        order, ordered = _order_name(plan), {"dataset", "sampler"} <= takes
        if "batch_size" not in takes and str(plan.batch_size) != default_of("batch_size"):
            said = f"batch_size={plan.batch_size}"
            raise Unsupported(f"{said}: loader={target} brings its own batches")
        if plan.drop_last and not (ordered and "drop_last" in takes):
            raise Unsupported(f"drop_last=true: which samples loader={target} drops is not known")
        known = ("random", "sequential") if "shuffle" in takes else (default_of("order"),)
        if not ordered and order not in known:
            raise Unsupported(f"order={order}: loader={target} brings its own order")

    def open(self, prepared: Prepared, plan: Plan) -> AbstractContextManager[Epochs]:
        """Epochs of batches as they are given.

        Raises Unsupported for a setting that has no parameter and is not its default.
        """
        return self.delivering(plan, prepared.dataset)

    @contextmanager
    def delivering(self, plan: Plan, dataset: Dataset | None) -> Iterator[Epochs]:
        """The same; the dataset is opened where there is a parameter for it."""
        self.check(plan)
        takes = self.takes
        samples = dataset.open() if dataset is not None and "dataset" in takes else None
        given = _arguments(plan, takes, samples)
        torch.manual_seed(plan.seed)
        started: list[weakref.ref[Any]] = []
        with _start_method(plan.multiprocessing_context):
            made = None if "epoch" in takes else self._call(given)
            epochs = partial(self._epoch, given, self._epochs(given, made))
            try:
                with failures_named(made):
                    yield lambda number: Noted(epochs(number), started)
            finally:
                end_iterators(made, started)

    def _call(self, given: dict[str, Any]) -> Any:
        made = called(self.target, self.kwargs | given)
        if not is_iterable(made) and not callable(made):
            kind = type(made).__name__
            raise BadData(f"{self.target}: it gives {kind}, which can't be iterated over")
        return made

    def _epochs(self, given: dict[str, Any], made: Any) -> Epochs:
        if made is None:
            return lambda number: self._call(given | {"epoch": number})
        if isinstance(made, Iterator):  # which has one epoch only
            first = [made]
            return lambda _: first.pop() if first else self._call(given)
        return epochs_of(made) if is_iterable(made) else made

    def _epoch(self, given: dict[str, Any], epochs: Epochs, number: int) -> Iterable[Tree]:
        if "sampler" in given:
            given["sampler"].epoch = number
        return epochs(number)


def _arguments(plan: Plan, takes: frozenset[str], samples: Samples | None) -> dict[str, Any]:
    offered = {name: getattr(plan, name) for name in SETTINGS}
    offered["shuffle"] = _order_name(plan) == "random"
    if samples is not None:
        offered["dataset"] = samples
        offered["sampler"] = EpochSampler(plan.order, len(samples), plan.seed)
    given = {name: value for name, value in offered.items() if name in takes}
    if "sampler" in given:
        given.pop("shuffle", None)  # torch takes one of them
    return given


def _order_name(plan: Plan) -> str:
    return type(whole_order(plan)).__module__.rpartition(".")[2]


@contextmanager
def _start_method(name: str | None) -> Iterator[None]:
    # What it starts itself starts as in a plain script: a trial's own method is forkserver.
    before = multiprocessing.get_start_method(allow_none=True)
    first = multiprocessing.get_all_start_methods()[0]
    multiprocessing.set_start_method(name or first, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
