"""Which data loading loop is fastest for my data on my machine, why, and how far is it from what
the machine can do?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastloop.fastloader import FastLoader, converted
    from fastloop.in_process import Bench, BenchResult, bench, bench_all

__all__ = ["Bench", "BenchResult", "FastLoader", "bench", "bench_all", "converted"]


def __getattr__(name: str) -> Any:
    """Import torch only for who uses it: `--help` and completion must not pay for it."""
    if name not in __all__:
        raise AttributeError(f"module 'fastloop' has no attribute {name!r}")
    if name in ("FastLoader", "converted"):
        from fastloop import fastloader as home
    else:
        from fastloop import in_process as home
    return getattr(home, name)
