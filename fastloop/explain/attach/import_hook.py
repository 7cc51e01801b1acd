"""Puts the probe into torch's DataLoader as soon as the script imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fastloop.explain.attach.effects import are_effects_asked, note_saves, record_effects
from fastloop.explain.attach.watch import CUT, record_watched

MODULE, FASTLOADER = "torch.utils.data.dataloader", "fastloop.fastloader.loader"


def install_probe(folder: str) -> None:
    """Record the DataLoaders of this process to the folder, from the import of torch on.

    FastLoaders, and the iterables that fastloop.watch gets, are recorded, too.
    """
    # A second probe would record everything twice.
    if any(isinstance(finder, ProbeFinder) for finder in sys.meta_path):
        return
    if are_effects_asked(Path(folder)):
        record_effects(Path(folder))
    _probe_on_import(MODULE, _probe, folder)
    # A shortened run ends after batches of a DataLoader's loop, and records no other.
    if not (Path(folder) / CUT).exists():
        record_watched(folder)
        _probe_on_import(FASTLOADER, _probe_fastloader, folder)


def _probe_on_import(name: str, probe: Callable[[ModuleType, str], None], folder: str) -> None:
    # The process may have imported torch before, as children of a fork server that preloads it.
    if module := sys.modules.get(name):
        probe(module, folder)
    else:
        sys.meta_path.insert(0, ProbeFinder(name, probe, folder))


class ProbeFinder(MetaPathFinder):
    """Finds a module with a loader that adds a probe."""

    def __init__(self, name: str, probe: Callable[[ModuleType, str], None], folder: str) -> None:
        self.name, self.probe, self.folder = name, probe, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification by the other finders, with the probe; None for other modules."""
        if fullname != self.name:
            return None
        # The module is imported once; from then on the script has its own finders only.
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            if spec := finder.find_spec(fullname, path, target):
                self._follow_execution(spec)
                return spec
        return None

    def _follow_execution(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The module keeps its loader as __loader__, which is then as it was found.
            del loader.exec_module
            execute(module)
            self.probe(module, self.folder)

        loader.exec_module = exec_module


def _probe(module: ModuleType, folder: str) -> None:
    # The probe's clock (core/spans.py) imports torch, which must be the script's own doing.
    from fastloop.explain.attach.cut_plan import read_cut
    from fastloop.explain.attach.cut_run import cut_module
    from fastloop.explain.attach.loop_probe import probe_module

    if are_effects_asked(Path(folder)):
        note_saves(sys.modules["torch"])
    if cut := read_cut(Path(folder)):
        cut_module(module, cut, Path(folder))
    else:
        probe_module(module, folder)


def _probe_fastloader(module: ModuleType, folder: str) -> None:
    from fastloop.explain.attach.watched_loops import probe_fastloader

    probe_fastloader(module, folder)
