"""Find the places in a script at which a DataLoader is made and iterated over."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from fastloop.explain.attach.library_files import is_library, is_standard, package_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

PROBE_FOLDERS = tuple(
    os.path.join("fastloop", *folder) for folder in (("explain", "attach"), ("observe",), ("tune",))
)
"""Ends of the paths of fastloop's folders with probes, the modules that wrap torch's functions."""
TORCH = "torch"
"""Name of the package with DataLoader."""
LOADER_METHODS = "__init__", "__iter__", "__next__"
"""Names of the methods by which a class derived from DataLoader is made and iterated over."""
ANY_NAME = "**"
"""Stands for `**kwargs` in a list of arguments: any further keyword argument is accepted."""


def place_in_script() -> str:
    """The place in the script that uses a DataLoader now, as `<file>:<line>`.

    Empty if this thread runs no code of the script, as a thread that only calls next().
    """
    return _show_place(frame_in_script())


def place_of_pass() -> str:
    """The place that begins a pass over a DataLoader, as `<file>:<line>`.

    If this thread runs no code of the script, it is the innermost place in an installed library;
    empty if there is none.
    """
    frame = frame_in_script() or next(_library_frames(), None)
    return _show_place(frame)


def frame_in_script() -> FrameType | None:
    """The frame that uses a DataLoader: the innermost one outside of libraries, or None."""
    # All loops over a class derived from DataLoader share the methods of the class. So the frame of
    # such a method does not show which loop it is.
    for frame in _frames():
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if not is_library(path) and not is_probe(path) and name not in LOADER_METHODS:
            return frame
    return None


def _library_frames() -> Iterator[FrameType]:
    """Yield the frames in installed libraries other than torch, the innermost first."""
    for frame in _frames():
        path = frame.f_code.co_filename
        # The frames of torch, such as those of DataLoader itself, do not show which loop it is.
        if package_of(path) not in ("", TORCH) and not is_probe(path):
            yield frame


def _show_place(frame: FrameType | None) -> str:
    """The file name and the line of a frame, as `<file>:<line>`; empty for None."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def place_of_call(loader: DataLoader[Any] | None) -> str:
    """The call that makes the DataLoader, as `<path>:<line>`; it may be in a library.

    loader: the DataLoader; None if it is not made yet. Returns an empty text if no call is found.
    """
    for frame in _frames():
        path = frame.f_code.co_filename
        # Frames with the loader as their first argument are skipped. Such a frame is the __init__
        # of a class derived from DataLoader, or of a library's wrapper of it, as in Lightning.
        if not is_probe(path) and not _is_of(frame, loader):
            # Code that exec() runs is in no file, and has a path such as <string>.
            where = path if path.startswith("<") else os.path.abspath(path)
            return f"{where}:{frame.f_lineno}"
    return ""


def find_original(
    loader: DataLoader[Any], is_known: Callable[[object], bool]
) -> DataLoader[Any] | None:
    """The script's DataLoader from which a library is making this one; None if there is none.

    Lightning and Accelerate replace the script's DataLoader by their own with nearly the same
    arguments, to set a sampler that divides the samples among the ranks. is_known: returns True for
    a DataLoader that may be the original.
    """
    for frame in _frames():
        path = frame.f_code.co_filename
        # If the script derives a class from DataLoader, the frame of its __init__ is skipped.
        if is_probe(path) or _is_of(frame, loader):
            continue
        if not is_library(path):
            return None
        # A function of the library has the original in a variable. Both have the same dataset.
        for value in frame.f_locals.values():
            is_other = value is not loader and is_known(value)
            if is_other and getattr(value, "dataset", None) is loader.dataset:
                return value
    return None


def names_of_arguments(kind: type) -> list[str] | None:
    """The names of the arguments of a class derived from DataLoader.

    They contain ANY_NAME if the class has `**kwargs`. None if the class has `*args`, or no readable
    signature.
    """
    with suppress(TypeError, ValueError):
        parameters = [*inspect.signature(kind.__init__).parameters.values()][1:]
        if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            return [ANY_NAME if each.kind is each.VAR_KEYWORD else each.name for each in parameters]
    return None


def is_probe(path: str) -> bool:
    """True for a file of fastloop with functions that wrap those of torch."""
    return os.path.dirname(path).endswith(PROBE_FOLDERS)


def _is_of(frame: FrameType, loader: DataLoader[Any] | None) -> bool:
    """True if the frame is one of a method that has the loader as its first argument."""
    names = frame.f_code.co_varnames
    return bool(names) and loader is not None and frame.f_locals.get(names[0]) is loader


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first, without those of Python's standard library.

    The first frames are those of this module. Callers skip them, as this module is a probe.
    """
    frame = sys._getframe()
    while frame:
        path = frame.f_code.co_filename
        # A frame of the standard library only passes a call on. `typing` does so for
        # DataLoader[int](dataset), and `runpy` for a module that `python -m` runs.
        if not is_standard(path):
            yield frame
        frame = frame.f_back
