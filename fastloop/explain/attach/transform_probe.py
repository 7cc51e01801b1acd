"""Record the calls of a dataset's transforms while a batch is made.

Meanwhile a wrapper replaces the `__call__` of each transform's class. The dataset keeps its own
transforms, because the script may do anything with them: look at their type, set their attributes,
iterate over them, or replace them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import current_thread, get_ident, main_thread
from types import FunctionType
from typing import Any

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings

MOST_NESTED = 4
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
    with ExitStack() as stack:
        # If several threads wrapped and unwrapped a class at once, the class could stay wrapped.
        if current_thread() is main_thread():
            attributes = _find_attributes(dataset)
            recorder = CallRecorder(attributes, log)
            kinds = [
                type(attributes[name]) for name in (TRANSFORM, TRANSFORMS) if name in attributes
            ]
            for kind in kinds:
                if call := _find_call(kind):
                    stack.enter_context(_replace_call(kind, recorder.wrap(kind, call)))
        yield


def _find_attributes(dataset: Any) -> dict[str, Any]:
    """The attributes of the dataset, or of the dataset inside of it, that has a transform.

    The dictionary is the object's own, so it shows later changes. It is empty if there is no
    transform.
    """
    # The script's objects may raise anything, as a proxy does outside of its context.
    with suppress(Exception):
        for _ in range(MOST_NESTED):
            attributes = vars(dataset)
            if any(callable(attributes.get(name)) for name in (TRANSFORM, TRANSFORMS)):
                return attributes
            dataset = attributes.get("dataset")
    return {}


def _find_call(kind: type) -> FunctionType | None:
    """The `__call__` that a class has or inherits; None if this method is not to be wrapped."""
    # A class of torch, such as Sequential, may also be that of a model, which torch.compile reads.
    if str(kind.__module__).partition(".")[0] == "torch":
        return None
    call = next((vars(each)[CALL] for each in kind.__mro__ if CALL in vars(each)), None)
    return call if isinstance(call, FunctionType) else None


@contextmanager
def _replace_call(kind: type, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Make the wrapper the `__call__` of a class inside the context."""
    before = vars(kind).get(CALL)
    # Python looks `__call__` up in the class, so an attribute of the object would have no effect.
    # A metaclass of the script may have a __setattr__ of its own, which is not called here.
    type.__setattr__(kind, CALL, wrapper)
    try:
        yield
    finally:
        # If the script has set another __call__ meanwhile, that method is kept.
        if vars(kind).get(CALL) is wrapper:
            if before is None:
                type.__delattr__(kind, CALL)
            else:
                type.__setattr__(kind, CALL, before)


class CallRecorder:
    """Records the calls of a dataset's transforms by the thread that has made this object.

    attributes: the attributes of the dataset, among them its transforms.
    """

    def __init__(self, attributes: dict[str, Any], log: EventLog) -> None:
        self._attributes = attributes
        self._here = log.here()
        self._process_id, self._thread_id = os.getpid(), get_ident()
        self._is_inside = False

    def wrap(self, kind: type, call: FunctionType) -> Callable[..., Any]:
        """The method `call` of a class, wrapped to record an event for each call of a transform.

        kind: the class, which has or inherits the method.
        """
        is_own = CALL in vars(kind)

        # `transform` is positional only, because the script may give any name to an argument.
        @functools.wraps(call)
        @skip_in_warnings
        def __call__(transform: Any, /, *args: Any, **named: Any) -> Any:  # noqa: N807
            # An inherited method is looked up behind `kind` in the classes of this object, which
            # may have another one there: its class may be derived from `kind` and others.
            bound = call.__get__(transform) if is_own else getattr(super(kind, transform), CALL)
            if not self._is_recorded(transform):
                return bound(*args, **named)
            start_ns = now_ns()
            self._is_inside = True
            try:
                result = bound(*args, **named)
            finally:
                self._is_inside = False
            self._here.add(Part.TRANSFORM, start_ns, now_ns())
            return result

        return __call__

    def _is_recorded(self, transform: Any) -> bool:
        """True if a call of this object is to be recorded."""
        # torchvision's `transforms` calls `transform`, and the time of the outer call includes that
        # of the inner one. So calls inside of a recorded call are not recorded.
        # Other objects of the class are no transforms of the dataset. The two names are compared
        # one by one, because a loop would take longer than all the rest.
        # Other threads also call the wrapper, and so does a process that is forked meanwhile.
        get = self._attributes.get
        return (
            not self._is_inside
            and (get(TRANSFORM) is transform or get(TRANSFORMS) is transform)
            and self._thread_id == get_ident()
            and self._process_id == os.getpid()
            and self._here.is_detailed
        )
