"""The loader that users take home; it needs torch and numpy only."""

from fastloop.fastloader.convert import converted
from fastloop.fastloader.encoded import Images
from fastloop.fastloader.indices import Blocks
from fastloop.fastloader.loader import FastLoader
from fastloop.fastloader.windows import Windows

__all__ = ["Blocks", "FastLoader", "Images", "Windows", "converted"]
