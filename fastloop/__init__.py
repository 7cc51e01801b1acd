"""Which data loading loop is fastest for my data on my machine, why, and how far is it from what
the machine can do?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastloop.fastloader import Blocks, FastLoader, Images, Windows, converted
    from fastloop.in_process import Bench, BenchResult, bench, bench_all
    from fastloop.stored import open_store, write_store

HOMES = {
    "fastloader": ("Blocks", "FastLoader", "Images", "Windows", "converted"),
    "in_process": ("Bench", "BenchResult", "bench", "bench_all"),
    "stored": ("open_store", "write_store"),
}
__all__ = [
    "Bench",
    "BenchResult",
    "Blocks",
    "FastLoader",
    "Images",
    "Windows",
    "bench",
    "bench_all",
    "converted",
    "open_store",
    "write_store",
]


def __getattr__(name: str) -> Any:
    """Import torch only for who uses it: `--help` and completion must not pay for it."""
    if name not in __all__:
        raise AttributeError(f"module 'fastloop' has no attribute {name!r}")
    home = next(home for home, names in HOMES.items() if name in names)
    return getattr(import_module(f"fastloop.{home}"), name)
