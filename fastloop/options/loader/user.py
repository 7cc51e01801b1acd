"""The user's own loader: a function or class, the *target*, that returns an iterable of batches."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, model_validator

from fastloop.core.loading_settings import DECLARED
from fastloop.core.open_iterators import OpenIterators
from fastloop.core.order_parts import (
    OrderPrefix,
    is_shuffled,
    order_of_all_ranks,
    without_prefix,
)
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
from fastloop.data.torch_epochs import EpochSampler
from fastloop.data.worker_errors import name_failing_sample

PLANNED = ("seed", "rank", "world_size")
"""Fields of a `Plan` that are passed to the target's parameters of the same names, like the loading
settings."""
OFFERED_TO_LOADER = (*DECLARED, *PLANNED, "shuffle", "dataset", "sampler", "epoch", "collate_fn")
"""Names of the parameters for which fastloop passes arguments, if the target has them."""


def iterable_epochs(loader: Iterable[Tree]) -> Epochs:
    """Epochs of an iterable loader.

    Each epoch first calls `set_epoch` of the loader, its samplers and its dataset, if they have it.
    """
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
    """The batches of an epoch; the iterators over them are kept in `started`, which closes them."""

    batches: Iterable[Tree]
    started: OpenIterators

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - len's TypeError is right

    def __iter__(self) -> Iterator[Tree]:
        return self.started.start(self.batches)


@option
class UserLoader:
    """The user's own loader, `loader._target_=package.module.name`, called in the trial's process.

    Parameters named like a setting of fastloop receive that setting. `dataset` receives the opened
    dataset, `sampler` the order of its indices, `shuffle` whether the order is random, and
    `collate_fn` the function of `collate=`, except with collate=default. A target with a parameter
    `epoch` receives the epoch's number, and is called for each epoch. A setting without a parameter
    (order, batch size, workers) is up to the target.

    The target returns an iterable that is iterated once per epoch, an iterator (the target is then
    called again for each epoch), or a function from an epoch's number to its batches.

    With several ranks, each rank calls the target, which must deliver the shard of that rank.
    `sampler` yields the shard's indices; a target without it uses `rank` and `world_size`, or asks
    torch.distributed. Shards may differ in length, or be padded as by torch's DistributedSampler.
    """

    store: ClassVar[None] = None
    is_user_code: ClassVar[bool] = True
    target: Annotated[str, AfterValidator(check_usable)]
    """Import path `package.module.name` of the function or class."""
    kwargs: dict[str, Any]
    """Keyword arguments of the target that the user gives."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> UserLoader:
        check_arguments(self.target, self.kwargs, OFFERED_TO_LOADER)
        return self

    @property
    def parameters_to_pass(self) -> frozenset[str]:
        """Names of the target's parameters for which fastloop passes arguments."""
        return (parameter_names(self.target) & set(OFFERED_TO_LOADER)) - self.kwargs.keys()

    @property
    def honours_batch_size(self) -> bool:
        """True if the target takes `batch_size`."""
        return "batch_size" in self.parameters_to_pass

    @property
    def brings_data(self) -> bool:
        """True if the target takes no `dataset`."""
        return "dataset" not in self.parameters_to_pass

    @property
    def unknown_files(self) -> str:
        """The reason why the loader may read any file."""
        return f"the files that {self.target} reads are not known"

    def check(self, plan: Plan) -> None:
        """Raise Unsupported for settings that were changed but that the target does not take."""
        target = self.target
        passed = self.parameters_to_pass
        collate = (CANONICAL_COLLATE,) if "collate_fn" in passed else ()
        check_honoured(target, plan, (*passed, *collate, "multiprocessing_context"))
        # A default that the target can't take is not an error: the user may not have asked for it.
        if "batch_size" not in passed and plan.loading.batch_size != DECLARED["batch_size"].default:
            setting = f"batch_size={plan.loading.batch_size}"
            raise Unsupported(f"{setting}: loader={target} sets its own batch size")
        follows_order = {"dataset", "sampler"} <= passed
        if plan.loading.drop_last and not (follows_order and "drop_last" in passed):
            raise Unsupported(
                f"drop_last=true: it is not known which samples loader={target} drops"
            )
        if not follows_order:
            self._check_own_order(plan)

    def _check_own_order(self, plan: Plan) -> None:
        """Raise Unsupported for an order that a target without `sampler` can't follow."""
        if isinstance(order_of_all_ranks(plan), OrderPrefix):
            reason = "sets its own order; fastloop.bench takes batches= for it"
            raise Unsupported(f"batches: loader={self.target} {reason}")
        # A target that takes `shuffle` is told whether the order is random. If the target takes a
        # dataset, data/sample_order.py checks by the delivered samples which order it has followed.
        is_judged = "shuffle" in self.parameters_to_pass or not self.brings_data
        known = ("random", "sequential") if is_judged else ("random",)
        order = name_of(without_prefix(order_of_all_ranks(plan)))
        if order not in known:
            raise Unsupported(f"order={order}: loader={self.target} sets its own order")

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """The epochs of the target's batches; raises Unsupported as `check` does."""
        return self.open_epochs(plan, prepared.dataset)

    @contextmanager
    def open_epochs(self, plan: Plan, dataset: Dataset | None) -> Iterator[Epochs]:
        """Yield the epochs; the dataset is opened if the target takes it.

        Raises Unsupported as `check` does.
        """
        self.check(plan)
        samples = None if dataset is None or self.brings_data else dataset.open()
        arguments = _arguments(plan, self.parameters_to_pass, samples)
        # A loader that draws its order from torch's generator repeats it for an equal seed.
        torch.manual_seed(plan.seed)
        started = OpenIterators()
        with _start_method(plan.loading.multiprocessing_context):
            loader = None if "epoch" in self.parameters_to_pass else self._call(arguments)
            batches_of = self._epochs_of_target(arguments, loader)

            def epochs(number: int) -> Iterable[Tree]:
                if "sampler" in arguments:
                    arguments["sampler"].epoch = number
                return TrackedEpoch(batches_of(number), started)

            try:
                with name_failing_sample(loader):
                    yield epochs
            finally:
                started.close(loader)

    def _call(self, arguments: dict[str, Any]) -> Any:
        """The target's return value; raises BadData if the call fails, or if the value is neither
        iterable nor callable."""
        loader = call(self.target, self.kwargs | arguments)
        if not is_iterable(loader) and not callable(loader):
            kind = type(loader).__name__
            raise BadData(f"{self.target}: it returns {kind}, which is not iterable")
        return loader

    def _epochs_of_target(
        self, arguments: dict[str, Any], loader: Iterable[Tree] | Epochs | None
    ) -> Epochs:
        """Epochs of the loader that the target returned; None: each epoch calls the target."""
        if loader is None:
            return lambda number: self._call(arguments | {"epoch": number})
        if isinstance(loader, Iterator):
            iterators = self._call_for_each(arguments, loader)
            return lambda _: next(iterators)
        # An object with __getitem__ alone is iterable, too, which its type does not show.
        return iterable_epochs(loader) if is_iterable(loader) else loader  # pyright: ignore

    def _call_for_each(
        self, arguments: dict[str, Any], first: Iterator[Tree]
    ) -> Iterator[Iterator[Tree]]:
        """Yield an iterator for each epoch: `first`, then the results of further calls.

        An iterator can be iterated only once, so no epoch can use the one before it again.
        """
        yield first
        while True:
            yield self._call(arguments)


def _arguments(
    plan: Plan, parameters_to_pass: frozenset[str], samples: Samples | None
) -> dict[str, Any]:
    """The arguments for the target's parameters of these names; `samples` is the opened dataset."""
    offered = plan.loading.as_arguments() | {name: getattr(plan, name) for name in PLANNED}
    offered["shuffle"] = is_shuffled(plan)
    if plan.collate is not None:
        offered["collate_fn"] = plan.collate.collate
    if samples is not None:
        offered["dataset"] = samples
        offered["sampler"] = EpochSampler(plan.order, len(samples), plan.seed)
    arguments = {name: value for name, value in offered.items() if name in parameters_to_pass}
    if "sampler" in arguments:
        # torch's DataLoader accepts either a sampler or shuffle=True.
        arguments.pop("shuffle", None)
    return arguments


@contextmanager
def _start_method(name: str | None) -> Iterator[None]:
    """Let multiprocessing start processes by this method inside the context.

    None: the platform's default, as in a plain script. The default of a trial's process would be
    forkserver.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    first = multiprocessing.get_all_start_methods()[0]
    multiprocessing.set_start_method(name or first, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)
