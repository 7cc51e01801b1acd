"""Record the calls of a dataset's transforms while a batch is made.

The dataset keeps its own objects, because the script may do anything with them: look at their type,
set their attributes, iterate over them, or replace them. Instead `__call__` of their class is
wrapped, for the time of a batch.
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
    """A context in which the calls of the dataset's transforms by this thread are recorded.

    Functions, and objects of classes that are not written in Python or are torch's, are not timed.
    """
    own = _find_attributes(dataset)
    # Not a set: a class may have no hash, as its metaclass decides.
    kinds = [type(own[name]) for name in (TRANSFORM, TRANSFORMS) if name in own]
    # Threads that wrap and unwrap the same class in turn could leave it wrapped.
    is_main = current_thread() is main_thread()
    with ExitStack() as stack:
        calls = TransformCalls(own, log)
        for kind in kinds:
            if is_main and (call := _find_call(kind)):
                stack.enter_context(_wrap_call(kind, calls.wrap(kind, call)))
        yield


def _find_attributes(dataset: Any) -> dict[str, Any]:
    """The attributes of the dataset, or of a dataset inside of it, that has a transform."""
    # The script's objects may raise anything, such as a proxy outside of its context.
    with suppress(Exception):
        for _ in range(MOST_WRAPPED):
            names = vars(dataset)
            if any(callable(names.get(name)) for name in (TRANSFORM, TRANSFORMS)):
                return names
            dataset = names.get("dataset")
    return {}


def _find_call(kind: type) -> FunctionType | None:
    """The method by which objects of the class are called; None if it is not to be wrapped."""
    # A model may be of the same class, such as Sequential, and torch.compile may look at it.
    if str(kind.__module__).partition(".")[0] == "torch":
        return None
    call = next((vars(each)[CALL] for each in kind.__mro__ if CALL in vars(each)), None)
    return call if isinstance(call, FunctionType) else None


@contextmanager
def _wrap_call(kind: type, call: Callable[..., Any]) -> Iterator[None]:
    """A context in which the class has another `__call__`."""
    before = vars(kind).get(CALL)
    # A metaclass of the script may have a __setattr__ of its own.
    type.__setattr__(kind, CALL, call)
    try:
        yield
    finally:
        # Unless the script has set another one meanwhile.
        if vars(kind).get(CALL) is call:
            if before is None:
                type.__delattr__(kind, CALL)
            else:
                type.__setattr__(kind, CALL, before)


@dataclass
class TransformCalls:
    """Records the calls of a dataset's transforms by the thread that has made this object."""

    own: dict[str, Any]
    """The attributes of the dataset."""
    log: EventLog

    def __post_init__(self) -> None:
        self.here = self.log.here()
        self.maker = _find_thread()
        self.is_inside = False
        """True in a call that is recorded."""

    def wrap(self, kind: type, call: FunctionType) -> Callable[..., Any]:
        """The method `call` of the class, with an event for each call of a transform."""
        is_own = CALL in vars(kind)

        # The script may give any name to an argument.
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
        # torchvision's `transforms` calls `transform`, whose time is a part of its own. A process
        # that is forked here has the wrapper for good. The names are asked for one by one, because
        # a loop would take longer than all else.
        get = self.own.get
        return (
            not self.is_inside
            and (get(TRANSFORM) is transform or get(TRANSFORMS) is transform)
            and self.maker == _find_thread()
            and self.here.is_detailed
        )


def _find_thread() -> tuple[int, int]:
    return os.getpid(), get_ident()
