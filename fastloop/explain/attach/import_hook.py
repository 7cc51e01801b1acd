"""Puts the probe into torch's DataLoader as soon as the script imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULE = "torch.utils.data.dataloader"


def install_probe(folder: str) -> None:
    """Record in the folder what DataLoaders of this process do, from when torch is imported."""
    if any(isinstance(finder, DataLoaderFinder) for finder in sys.meta_path):
        return
    if module := sys.modules.get(MODULE):
        _probe(module, folder)
    else:
        sys.meta_path.insert(0, DataLoaderFinder(folder))


class DataLoaderFinder(MetaPathFinder):
    """Finds torch's module of the DataLoader, with a loader that adds the probe."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification that the other finders give; None for all other modules."""
        if fullname != MODULE:
            return None
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
            del loader.exec_module
            execute(module)
            _probe(module, self.folder)

        loader.exec_module = exec_module


def _probe(module: ModuleType, folder: str) -> None:
    from fastloop.explain.attach.probe import (
        probe_module,
    )  # reads a clock, for which it needs torch

    probe_module(module, folder)
