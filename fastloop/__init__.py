"""The public Python names of fastloop, which measures and speeds up data loading with PyTorch.

fastloop answers: which data loading loop is fastest for my data on my machine, why, and how far is
it from the limit of the machine?
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastloop.data.image_encodings import LongestSide
    from fastloop.data.stored_images import StoredImages
    from fastloop.data.user_store import open_store, write_store
    from fastloop.explain.attach.watch import watch
    from fastloop.explain.explain_loop import explain_loop as explain
    from fastloop.fastloader import (
        Blocks,
        CenterCrop,
        FastLoader,
        Images,
        RandomResizedCrop,
        Windows,
        converted,
        has_core,
        has_jpeg,
        sample_seed,
    )
    from fastloop.sweep.bench_results import Bench, BenchResult
    from fastloop.sweep.in_process import bench, bench_all
    from fastloop.tune.loop_tuning import LoopTuning
    from fastloop.tune.loop_tuning import tune_loop as tune

MODULES = {
    "data.image_encodings": ("LongestSide",),
    "data.stored_images": ("StoredImages",),
    "explain.attach.watch": ("watch",),
    "tune.loop_tuning": ("LoopTuning",),
    "data.user_store": ("open_store", "write_store"),
    "fastloader": (
        "Blocks",
        "CenterCrop",
        "FastLoader",
        "Images",
        "RandomResizedCrop",
        "Windows",
        "converted",
        "has_core",
        "has_jpeg",
        "sample_seed",
    ),
    "sweep.bench_results": ("Bench", "BenchResult"),
    "sweep.in_process": ("bench", "bench_all"),
}
__all__ = [
    "Bench",
    "BenchResult",
    "Blocks",
    "CenterCrop",
    "FastLoader",
    "Images",
    "LongestSide",
    "LoopTuning",
    "RandomResizedCrop",
    "StoredImages",
    "Windows",
    "bench",
    "bench_all",
    "converted",
    "explain",
    "has_core",
    "has_jpeg",
    "open_store",
    "sample_seed",
    "tune",
    "watch",
    "write_store",
]


def __dir__() -> list[str]:
    """The public names, for completion by editors; listing them imports none of them."""
    return sorted([*__all__, "__version__", "__doc__", "__name__", "__path__", "__file__"])


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use, so that `--help` imports no torch."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fastloop")
    # These packages can be called, so that they shadow no function of the same name.
    if name in ("explain", "tune"):
        return import_module(f"fastloop.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fastloop' has no attribute {name!r}")
    module = next(module for module, names in MODULES.items() if name in names)
    return getattr(import_module(f"fastloop.{module}"), name)
