"""Put a probe into torch's DataLoader, and one into FastLoader, as soon as the script imports it;
and record the iterables of fastloop.watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fastloop.explain.attach.cut_plan import CUT, read_cut
from fastloop.explain.attach.effects import are_effects_asked, note_saves, record_effects
from fastloop.explain.attach.watch import record_watched

DATALOADER_MODULE, FASTLOADER_MODULE = "torch.utils.data.dataloader", "fastloop.fastloader.loader"
"""Modules to which a probe is added when the script imports them."""


def install_probe(folder: str) -> None:
    """Record the DataLoaders of this process to the folder, from the import of torch on.

    FastLoaders, and the iterables that fastloop.watch gets, are recorded, too.
    """
    # A second probe would record everything twice.
    if any(isinstance(finder, ProbeFinder) for finder in sys.meta_path):
        return
    if are_effects_asked(Path(folder)):
        record_effects(Path(folder))
    _probe_on_import(DATALOADER_MODULE, _probe_dataloader, folder)
    # A shortened run times the loop over one DataLoader, and records nothing else.
    if not (Path(folder) / CUT).exists():
        record_watched(folder)
        _probe_on_import(FASTLOADER_MODULE, _probe_fastloader, folder)


def _probe_on_import(name: str, probe: Callable[[ModuleType, str], None], folder: str) -> None:
    # The process may have imported torch already, for example from a fork server that preloads it.
    if module := sys.modules.get(name):
        probe(module, folder)
    else:
        sys.meta_path.insert(0, ProbeFinder(name, probe, folder))


class ProbeFinder(MetaPathFinder):
    """Finds a module with a loader that adds a probe."""

    def __init__(self, name: str, probe: Callable[[ModuleType, str], None], folder: str) -> None:
        self.name = name
        self.probe = probe
        self.folder = folder

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
            # The module keeps this loader as its __loader__, so the loader is restored first.
            del loader.exec_module
            execute(module)
            self.probe(module, self.folder)

        loader.exec_module = exec_module


def _probe_dataloader(module: ModuleType, folder: str) -> None:
    # These modules import torch, for the clock in core/spans.py. They are imported here, and not at
    # the top, so that the probe never imports torch before the script does.
    from fastloop.explain.attach.cut_run import cut_module
    from fastloop.explain.attach.patch_dataloader import probe_module

    if are_effects_asked(Path(folder)):
        note_saves(sys.modules["torch"])
    if cut := read_cut(Path(folder)):
        cut_module(module, cut, Path(folder))
    else:
        probe_module(module, folder)


def _probe_fastloader(module: ModuleType, folder: str) -> None:
    from fastloop.explain.attach.watched_loops import probe_fastloader

    probe_fastloader(module, folder)
