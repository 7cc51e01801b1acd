"""Puts the probe into torch's DataLoader as soon as the script imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fastloop.explain.attach.effects import are_effects_asked, note_saves, record_effects

MODULE = "torch.utils.data.dataloader"


def install_probe(folder: str) -> None:
    """Record the DataLoaders of this process to the folder, from the import of torch on."""
    # A second probe would record everything twice.
    if any(isinstance(finder, DataLoaderFinder) for finder in sys.meta_path):
        return
    if are_effects_asked(Path(folder)):
        record_effects(Path(folder))
    # The process may have imported torch before, as children of a fork server that preloads it.
    if module := sys.modules.get(MODULE):
        _probe(module, folder)
    else:
        sys.meta_path.insert(0, DataLoaderFinder(folder))


class DataLoaderFinder(MetaPathFinder):
    """Finds the module of torch's DataLoader with a loader that adds the probe."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification by the other finders, with the probe; None for other modules."""
        if fullname != MODULE:
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
            _probe(module, self.folder)

        loader.exec_module = exec_module


def _probe(module: ModuleType, folder: str) -> None:
    # The probe's clock (core/spans.py) imports torch, which must be the script's own doing.
    from fastloop.explain.attach.cut_run import cut_module, read_cut
    from fastloop.explain.attach.torch_hooks import probe_module

    if are_effects_asked(Path(folder)):
        note_saves(sys.modules["torch"])
    if cut := read_cut(Path(folder)):
        cut_module(module, cut, Path(folder))
    else:
        probe_module(module, folder)
