"""The machine's limit of decoding, cropping and resizing: the native pass in threads of C, without
Python."""

import ctypes
import os
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import fastloop.fastloader
from experiments.augmented.loops import MEAN, NUM_WORKERS, RATIO, SCALE, SIDE, STD
from fastloop.fastloader.columns.images import pixel_format

NATIVE = Path(fastloop.fastloader.__file__).with_name("native") / "jpeg"
COMPILER = shlex.split(os.environ.get("CC") or "cc")
FLAGS = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-ffp-contract=off", "-fno-trapping-math"]
FLAGS += ["-fPIC", "-shared", "-pthread", f"-I{NATIVE}"]


def make_samples(library: ctypes.CDLL, paths: Sequence[str]) -> None:
    """Make a sample of each file, with as many threads as the loops have. Raises RuntimeError if
    one can't be made."""
    pixels = pixel_format((MEAN, STD), None, "CHW")
    encoded = (ctypes.c_char_p * len(paths))(*map(os.fsencode, paths))
    ranges = (ctypes.c_double * 4)(*SCALE, *RATIO)
    statistics = (ctypes.c_float * 6)(*pixels.factor, *pixels.offset)
    made = library.make_samples(encoded, len(paths), NUM_WORKERS, SIDE, ranges, statistics)
    if made != len(paths):
        raise RuntimeError(f"{len(paths) - made} of {len(paths)} samples were not made")


@cache
def load_library() -> ctypes.CDLL:
    """The library of limit.c and the decoder's own sources, compiled with the flags of the
    package."""
    sources = [path for path in sorted(NATIVE.glob("*.c")) if path.name != "module.c"]
    sources.append(Path(__file__).with_name("limit.c"))
    with TemporaryDirectory() as folder:
        target = Path(folder, "limit.so")
        command = [*COMPILER, *FLAGS, *map(str, sources), "-ljpeg", "-lm", "-o", str(target)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(target))
    pointers = ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_float)
    numbers = ctypes.c_int64, ctypes.c_int, ctypes.c_int
    library.make_samples.argtypes = [ctypes.POINTER(ctypes.c_char_p), *numbers, *pointers]
    library.make_samples.restype = ctypes.c_int64
    return library
