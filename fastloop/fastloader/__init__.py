"""FastLoader, the data loader that can be copied out of fastloop: it needs torch and numpy only."""

from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.columns.convert import converted
from fastloop.fastloader.columns.crops import CenterCrop, RandomResizedCrop
from fastloop.fastloader.columns.decoders import has_jpeg
from fastloop.fastloader.columns.images import Images
from fastloop.fastloader.columns.windows import Windows
from fastloop.fastloader.load_native_core import has_core
from fastloop.fastloader.loader import FastLoader
from fastloop.fastloader.sample_draws import sample_seed

__all__ = [
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
]
