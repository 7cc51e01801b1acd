"""Record the calls of a dataset's transforms while a batch is made.

The dataset keeps its own transforms, because the script may do anything with them: look at their
type, set their attributes, iterate over them, or replace them. Instead, the `__call__` of their
class is wrapped while a batch is made.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import current_thread, get_ident, main_thread
from types import FunctionType
from typing import Any

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings

MOST_WRAPPED = 4
"""Maximum number of nested datasets, such as Subsets, in which a transform is looked for."""
TRANSFORM, TRANSFORMS = "transform", "transforms"
"""Attributes with the transform of a dataset in torchvision, and in datasets modelled on it."""
CALL = "__call__"
"""Name of the method that is wrapped."""


@contextmanager
def time_transforms(dataset: Any, log: EventLog) -> Iterator[None]:
    """Record the calls of the dataset's transforms by this thread inside the context.

    Transforms that are functions, and objects of classes that torch has or that are not written in
    Python, are not recorded. Nothing is recorded outside of the main thread.
    """
    own = _find_attributes(dataset)
    # The classes are in a list, because a metaclass may leave a class without a hash.
    kinds = [type(own[name]) for name in (TRANSFORM, TRANSFORMS) if name in own]
    # If several threads wrapped and unwrapped a class at once, the class could stay wrapped.
    is_main = current_thread() is main_thread()
    with ExitStack() as stack:
        calls = TransformCalls(own, log)
        for kind in kinds:
            if is_main and (call := _find_call(kind)):
                stack.enter_context(_wrap_call(kind, calls.wrap(kind, call)))
        yield


def _find_attributes(dataset: Any) -> dict[str, Any]:
    """The attributes of the dataset, or of the dataset inside of it, that has a transform.

    Empty if there is no transform.
    """
    # The script's objects may raise anything, as a proxy does outside of its context.
    with suppress(Exception):
        for _ in range(MOST_WRAPPED):
            names = vars(dataset)
            if any(callable(names.get(name)) for name in (TRANSFORM, TRANSFORMS)):
                return names
            dataset = names.get("dataset")
    return {}


def _find_call(kind: type) -> FunctionType | None:
    """The `__call__` of a class; None if this method is not to be wrapped."""
    # A class of torch, such as Sequential, may also be that of a model, which torch.compile reads.
    if str(kind.__module__).partition(".")[0] == "torch":
        return None
    call = next((vars(each)[CALL] for each in kind.__mro__ if CALL in vars(each)), None)
    return call if isinstance(call, FunctionType) else None


@contextmanager
def _wrap_call(kind: type, call: Callable[..., Any]) -> Iterator[None]:
    """Replace the `__call__` of a class inside the context."""
    before = vars(kind).get(CALL)
    # A metaclass of the script may have a __setattr__ of its own, which is not called here.
    type.__setattr__(kind, CALL, call)
    try:
        yield
    finally:
        # If the script has set another __call__ meanwhile, that one is kept.
        if vars(kind).get(CALL) is call:
            if before is None:
                type.__delattr__(kind, CALL)
            else:
                type.__setattr__(kind, CALL, before)


@dataclass
class TransformCalls:
    """Records the calls of a dataset's transforms by the thread that has made this object."""

    own: dict[str, Any]
    """The attributes of the dataset, among them its transforms."""
    log: EventLog

    def __post_init__(self) -> None:
        self.here = self.log.here()
        """The part of the log for the thread that has made this object."""
        self.maker = _find_thread()
        """The process and the thread that have made this object."""
        self.is_inside = False
        """True during a call that is recorded."""

    def wrap(self, kind: type, call: FunctionType) -> Callable[..., Any]:
        """The method `call` of a class, wrapped to record an event for each call of a transform.

        kind: the class, which has or inherits the method.
        """
        is_own = CALL in vars(kind)

        # `transform` is positional only, because the script may give any name to an argument.
        @functools.wraps(call)
        @skip_in_warnings
        def __call__(transform: Any, /, *args: Any, **named: Any) -> Any:  # noqa: N807
            bound = call.__get__(transform) if is_own else getattr(super(kind, transform), CALL)
            if not self._is_recorded(transform):
                return bound(*args, **named)
            start_ns = now_ns()
            self.is_inside = True
            try:
                result = bound(*args, **named)
            finally:
                self.is_inside = False
            self.here.add(Part.TRANSFORM, start_ns, now_ns())
            return result

        return __call__

    def _is_recorded(self, transform: Any) -> bool:
        """True if a call of this object is to be recorded."""
        # torchvision's `transforms` calls `transform`, and the time of the outer call includes that
        # of the inner one. So calls inside of a recorded call are not recorded.
        # A process that is forked inside the context keeps the wrapper, but must not record, so the
        # process and the thread are compared.
        # The two names are compared one by one, because a loop would take longer than all the rest.
        get = self.own.get
        return (
            not self.is_inside
            and (get(TRANSFORM) is transform or get(TRANSFORMS) is transform)
            and self.maker == _find_thread()
            and self.here.is_detailed
        )


def _find_thread() -> tuple[int, int]:
    """(id of this process, id of this thread)."""
    return os.getpid(), get_ident()
