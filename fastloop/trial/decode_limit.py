"""Measure the limit for loaders of images: how fast this machine can decode a dataset's files, and
resize them if the dataset does so.

One thread per usable core decodes files that are in memory already. The installed libraries are
timed one after another; each of them releases the interpreter's lock while it decodes. The limit is
the rate of the fastest library that delivers the same pixels as the job's decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.protocols import EncodedSamples
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, name_of
from fastloop.data.decoder_agreement import TOLERANCE
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns import decoders
from fastloop.fastloader.columns.image_headers import Encoded, Encoding
from fastloop.trial.rate_on_cores import budget_ns, cores_of_rank, rate_on_cores

MAX_FILES, MAX_FILE_BYTES, MAX_READ_NS = 256, 128 << 20, 200_000_000
"""Before decoding is timed, files are read until their number, their bytes or the nanoseconds reach
these bounds. There is at least one file for each thread."""

LIBRARY_S = 0.1
"""Seconds of each of a library's two runs in `seconds_by_library`."""

LIBRARIES: dict[str, tuple[str, Callable[[Encoded, Encoding], np.ndarray]]] = {
    "turbojpeg": ("simplejpeg", decoders.decode_by_simplejpeg),
    "opencv": ("cv2", decoders.decode_by_opencv),
    "torchvision": ("torchvision.io", decoders.decode_by_torchvision),
    "pil": ("PIL.Image", decoders.decode_by_pillow),
}
"""Name of the option in conf/decoder -> the module that it needs, and its function."""


@dataclass(frozen=True)
class LibraryDecoder:
    """A decoder that replaces the job's decoder, and calls a function of one library."""

    function: Callable[[Encoded, Encoding], np.ndarray]

    def library(self) -> str:
        """Name of the function that decodes."""
        return self.function.__name__

    def decode(self, data: bytes) -> np.ndarray:
        """The image as (height, width, 3) uint8, RGB; raises BadData if it can't be decoded."""
        return decode_rgb(data, self.function)


@dataclass(frozen=True)
class Decoding:
    """Decoding of the same files by one library, on all threads."""

    decode: Callable[[bytes], np.ndarray]
    """Decodes a file; raises BadData."""
    files: list[bytes]
    threads: int
    firsts: dict[int, np.ndarray] = field(default_factory=dict)
    """Pixels of each thread's first file, by which libraries are compared."""

    def run(self, thread: int, stop_ns: int) -> int:
        """Decode until `stop_ns`, one file at least, and return the number of files."""
        # Each thread begins at a different file.
        start = thread * len(self.files) // self.threads
        count = 0
        while True:
            pixels = self.decode(self.files[(start + count) % len(self.files)])
            self.firsts.setdefault(thread, pixels)
            count += 1
            if now_ns() >= stop_ns:
                return count

    def agrees_with(self, other: Decoding) -> bool:
        """True if both libraries give each thread's first file the same shape, and no pixel differs
        by more than TOLERANCE."""
        pairs = ((pixels, other.firsts[thread]) for thread, pixels in self.firsts.items())
        return all(
            one.shape == two.shape and _difference(one, two) <= TOLERANCE for one, two in pairs
        )


def decode_limit(samples: Any, broken: Collection[int], seed: int, window_s: float) -> Limit | None:
    """Images per second that this machine can decode; None if the samples' files are unknown.

    broken: indices of samples that can't be decoded. Measuring takes about window_s, but at least
    0.05 s and one file for each thread and library, and at most 1 s. It needs 128 MiB for files,
    and the memory of the pixels of one file for each thread.
    """
    if not isinstance(samples, EncodedSamples):
        return None
    cores = cores_of_rank()
    files = read_files(samples, broken, seed, cores)
    with keep_opencv_threads():
        libraries = _libraries(samples)
        slice_ns = budget_ns(window_s) // len(libraries)
        own, *others = (Decoding(each.decode_file, files, cores) for each in libraries.values())
        rates = [rate_on_cores(own.run, cores, slice_ns)]
        rates += [_rate_if_equal(other, own, slice_ns) for other in others]
    best = int(np.argmax(rates))
    origin = LimitOrigin(kind="decoded images", engine=[*libraries][best], cores=cores)
    return Limit(samples_per_s=rates[best], origin=origin)


def seconds_by_library(samples: Any, broken: Collection[int], seed: int) -> dict[str, float]:
    """Name of a decoder -> seconds that one thread takes per file with it.

    The job's decoder comes first, then every other library that is installed and delivers the same
    pixels. Empty if the samples' files are unknown, or if the samples have no decoder.
    """
    if not isinstance(samples, EncodedSamples) or getattr(samples, "decoder", None) is None:
        return {}
    files = read_files(samples, broken, seed, 1)
    with keep_opencv_threads():
        libraries = {
            name: Decoding(each.decode_file, files, 1) for name, each in _libraries(samples).items()
        }
        own = next(iter(libraries.values()))
        rates: dict[str, float] = dict.fromkeys(libraries, 0.0)
        # Each library runs twice, and the faster run counts: the first run also loads the library.
        for _ in range(2):
            for name, each in libraries.items():
                rates[name] = max(rates[name], _rate_if_equal(each, own, budget_ns(LIBRARY_S)))
    return {name: 1 / rate for name, rate in rates.items() if rate}


def _rate_if_equal(other: Decoding, own: Decoding, slice_ns: int) -> float:
    """Images per second of `other`; 0 if it can't read a file, or its pixels are not those of
    `own`."""
    try:
        rate = rate_on_cores(other.run, other.threads, slice_ns)
    except BadData:
        return 0.0
    return rate if other.agrees_with(own) else 0.0


def _libraries(samples: EncodedSamples) -> dict[str, EncodedSamples]:
    """Name of a decoder -> the samples with it: the job's own first, then all that are
    installed."""
    own: Any = getattr(samples, "decoder", None)
    # A dataset that decodes by itself accepts no other decoder.
    if own is None:
        return {name_of(samples): samples}
    variants = {name_of(own): samples}
    for name, (module, function) in LIBRARIES.items():
        if name not in variants and _is_installed(module):
            variants[name] = replace(samples, decoder=LibraryDecoder(function))  # pyright: ignore
    return variants


def _is_installed(module: str) -> bool:
    """True if the module can be imported."""
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def read_files(
    samples: EncodedSamples, broken: Collection[int], seed: int, least: int
) -> list[bytes]:
    """Read the files of random samples: at least `least` files, or all if there are fewer."""
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    stop_ns = now_ns() + MAX_READ_NS
    files = []
    size = 0
    for index in (index for index in order if index not in broken):
        is_enough = len(files) == MAX_FILES or size >= MAX_FILE_BYTES or now_ns() >= stop_ns
        if is_enough and len(files) >= least:
            break
        files.append(samples.read_file(index))
        size += len(files[-1])
    return files


def _difference(one: np.ndarray, two: np.ndarray) -> int:
    # A difference of uint8 would wrap around.
    return int(np.abs(one.astype(np.int16) - two).max())


@contextmanager
def keep_opencv_threads() -> Iterator[None]:
    """Restore OpenCV's number of threads at the end, for other calls of OpenCV by the job."""
    # load_opencv sets one thread at its first call. If the job has decoded by OpenCV before, it
    # works with one thread already, and nothing is to be restored.
    is_set = decoders.load_opencv.cache_info().currsize > 0
    if is_set or not _is_installed("cv2"):
        yield
        return
    cv2 = import_module("cv2")
    before = cv2.getNumThreads()
    try:
        yield
    finally:
        cv2.setNumThreads(before)
        decoders.load_opencv.cache_clear()
