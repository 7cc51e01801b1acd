"""The loader that users take home; it needs torch and numpy only."""

from fastloop.fastloader.convert import converted
from fastloop.fastloader.loader import FastLoader

__all__ = ["FastLoader", "converted"]
