"""Shorten a run of a script, change one of its DataLoaders, and time the loop over it.

The script runs as usual until its loop has worked on a number of batches; then it ends with status
0. Nothing is recorded: the clock is read only when a pass begins, and around each batch.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fastloop.core.spans import now_ns
from fastloop.core.types import Unsupported
from fastloop.explain.attach.backward_probe import LossRecorder
from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.change_notes import collect_notes
from fastloop.explain.attach.cut_plan import RESULT, CutResult, CutRun
from fastloop.explain.attach.early_stop import end_script
from fastloop.explain.attach.edit_call import settings_beside
from fastloop.explain.attach.loader_places import (
    find_original,
    place_in_script,
    place_of_call,
    place_of_pass,
)
from fastloop.explain.attach.patch_dataloader import follow_reset

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

PASS_ATTRIBUTE = "_fastloop_pass"
"""Name of the attribute of an iterator that has its CutPass."""
DECISIVE_CALL = 2
"""Number of the call of next() that decides which loop a pass belongs to."""


def cut_module(module: ModuleType, cut: CutRun, folder: Path) -> None:
    """Wrap functions of torch.utils.data.dataloader: they carry out the shortened run in this
    process and its forks."""
    loop = CutLoop(cut, folder)
    loader = module.DataLoader
    iterator = module._BaseDataLoaderIter
    if cut.change.is_fastloader:
        loader.__new__ = loop.wrap_new(loader)
    loader.__init__ = loop.wrap_init(loader.__init__)
    iterator.__init__ = loop.wrap_iterator(iterator.__init__)
    iterator.__next__ = loop.wrap_next(iterator.__next__)
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
        kind._reset = follow_reset(kind._reset, loop.begin)


@dataclass
class CutPass:
    """A pass over a changed DataLoader, by the timed loop or by another one."""

    reached_ns: int
    """The time up to which the pass is counted in the result; at first the start of the pass."""
    place: str
    """Place in the script that asks for the batches: at first that of iter(), then of next()."""
    asked: int = 0
    """Number of calls of next() so far for which the caller was looked up."""


class CutLoop:
    """Changes the DataLoader, times the passes of the loop, and ends the script after its last
    batch."""

    def __init__(self, cut: CutRun, folder: Path) -> None:
        self.cut = cut
        self.folder = folder
        self.result = CutResult()
        self.losses = LossRecorder(lambda: self.result.batches)
        self.can_hash = True
        self.ends = 0
        """Number of attempts so far to end the script."""
        self.has_fastloader = False
        """True once FastLoader is wrapped, too."""
        self.changed: ByIdentity[bool] = ByIdentity()
        """The changed DataLoaders, and the FastLoaders in place of others."""

    def wrap_new(self, dataloader: type) -> Callable[..., Any]:
        """DataLoader.__new__, which returns a FastLoader at the place of the change.

        The script then gets the same loader as with the patch. If it needs more of a DataLoader
        than FastLoader has, such as its class, this run fails already, and not only the patched
        script.
        """
        signature = inspect.signature(dataloader.__init__)

        def __new__(kind: type, *args: Any, **named: Any) -> Any:  # noqa: N807
            # No patch puts FastLoader in place of a class that is derived from DataLoader.
            if kind is not dataloader or place_of_call(None) not in self.cut.made_at:
                make = super(dataloader, kind).__new__
                # A second base class may need the arguments, which `object` refuses.
                return make(kind) if make is object.__new__ else make(kind, *args, **named)
            arguments = signature.bind(None, *args, **named).arguments
            del arguments["self"]
            self._set_threads()
            settings = settings_beside(self.cut.change.settings, arguments)
            fast = self._make_fastloader({**arguments, **settings})
            self.changed[fast] = True
            return fast

        # inspect.signature(DataLoader) asks for that of __new__ first.
        __new__.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        return __new__

    def wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """DataLoader.__init__ with other arguments if it is called at the place of the change.

        It raises Unsupported there if FastLoader can't take the place of the DataLoader.
        """
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(loader: DataLoader[Any], *args: Any, **named: Any) -> None:  # noqa: N807
            if place_of_call(loader) not in self.cut.made_at:
                original(loader, *args, **named)
                # A library has made this one from the changed DataLoader, with its arguments.
                if find_original(loader, self.changed.__contains__) is not None:
                    self.changed[loader] = True
                return
            # If a function of a library calls __init__ for its caller, __new__ has not seen this
            # place. A DataLoader as it was must not be timed as FastLoader.
            if self.cut.change.is_fastloader:
                raise Unsupported("FastLoader can't take the place of a library's DataLoader")
            bound = signature.bind(loader, *args, **named)
            bound.arguments |= settings_beside(self.cut.change.settings, bound.arguments)
            self._set_threads()
            original(*bound.args, **bound.kwargs)
            self.changed[loader] = True

        return __init__

    def _set_threads(self) -> None:
        if self.cut.change.torch_threads is not None:
            torch.set_num_threads(self.cut.change.torch_threads)

    def _make_fastloader(self, arguments: dict[str, Any]) -> Any:
        """FastLoader with these arguments; its warnings are added to the notes of the result."""
        from fastloop.fastloader import FastLoader

        if not self.has_fastloader:
            self.has_fastloader = True
            FastLoader.__iter__ = self._wrap_iter(FastLoader.__iter__)
        notes: dict[str, None] = {}
        with collect_notes(notes):
            fast = FastLoader(**arguments)
        self.result.notes += notes
        return fast

    def _wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """FastLoader.__iter__, which begins a pass if it takes the place of the DataLoader."""

        @functools.wraps(original)
        def __iter__(fast: Any) -> Any:  # noqa: N807
            if fast not in self.changed:
                return original(fast)
            begun = CutPass(now_ns(), place_of_pass())
            return self._follow(original(fast), begun)

        return __iter__

    def _follow(self, batches: Iterator[Any], begun: CutPass) -> Iterator[Any]:
        """Yield FastLoader's batches, counted and timed in the same way as a DataLoader's."""
        while True:
            try:
                batch = self._next(functools.partial(next, batches), begun)
            except StopIteration:
                return
            yield batch

    def wrap_iterator(self, original: Callable[..., None]) -> Callable[..., None]:
        """The iterators' __init__, which begins a pass."""

        @functools.wraps(original)
        def __init__(iterator: Any, loader: DataLoader[Any], *args: Any, **named: Any) -> None:  # noqa: N807
            start_ns = now_ns()
            original(iterator, loader, *args, **named)
            self.begin(loader, iterator, start_ns)

        return __init__

    def begin(self, loader: DataLoader[Any], iterator: Any, start_ns: int) -> None:
        """Begin a pass over the iterator, if its DataLoader is the changed one."""
        if loader in self.changed:
            setattr(iterator, PASS_ATTRIBUTE, CutPass(start_ns, place_of_pass()))

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__, which counts the loop's batches."""

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            begun: CutPass | None = getattr(iterator, PASS_ATTRIBUTE, None)
            if begun is None:
                return original(iterator)
            return self._next(functools.partial(original, iterator), begun)

        return __next__

    def _next(self, call: Callable[[], Any], begun: CutPass) -> Any:
        """The next batch, counted and timed if the pass belongs to the timed loop."""
        # As in the observed run, the second call decides: a script may take a pass's first batch
        # elsewhere.
        if begun.asked < DECISIVE_CALL:
            begun.asked += 1
            # A thread that only calls next() has no place in the script.
            begun.place = place_in_script() or begun.place
        if begun.place != self.cut.place:
            return call()
        self._add_time(begun)
        if self.result.batches == 1 and not self.result.once_s:
            self.result.once_s = self.result.seconds
        # The loop asks for a batch after the last one, so the step on that one has ended, too.
        if self.result.batches == self.cut.hashed:
            self.losses.close()
        if self.result.batches == self.cut.batches:
            self._end_script()
        try:
            batch = call()
        finally:
            # A loop that is left by `break` never comes back to its pass.
            self._add_time(begun)
        self.result.batches += 1
        if self.result.batches == 1 and self.cut.hashed:
            self.losses.open()
        if self.result.batches <= self.cut.hashed and self.can_hash:
            self._hash(batch)
            hashed_ns = now_ns()
            if self.result.batches > 1:
                self.result.hash_s += (hashed_ns - begun.reached_ns) / 1e9
            begun.reached_ns = hashed_ns
        return batch

    def _hash(self, batch: Any) -> None:
        # A batch may hold objects that can't be hashed, such as graphs. The pass then has no hash.
        try:
            self.result.digests.append(_digest(batch))
        except Exception:
            self.can_hash = False
            self.result.digests.clear()

    def _add_time(self, begun: CutPass) -> None:
        """Add the time since `reached_ns` to the result."""
        stop_ns = now_ns()
        self.result.seconds += (stop_ns - begun.reached_ns) / 1e9
        begun.reached_ns = stop_ns

    def _end_script(self) -> None:
        """Write the result, and end the script by `sys.exit`, so that it can clean up."""
        self.result.losses = self.losses.read()
        path = self.folder / RESULT.format(os.getpid())
        # A process may be killed while it writes, as when another rank has ended: then the file is
        # missing, and not half of one.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.result)))
        partial.replace(path)
        self.ends += 1
        end_script(self.ends - 1)


def _digest(batch: Any) -> int:
    """A hash of the batch's samples that does not depend on their order."""
    from fastloop.data.digest import hash_sum, sample_hashes

    return hash_sum(sample_hashes(batch, None))
