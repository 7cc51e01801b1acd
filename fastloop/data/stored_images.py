"""The result of write_store for encoded images: the cost of writing, and the savings of reading,
which are measured by crops of some images."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fastloop.core.spans import cpu_ns
from fastloop.data.npy_store import IMAGES, spread_indices
from fastloop.fastloader.columns.cropped_images import (
    CroppedImages,
    choose_crop_decoder,
    pixel_format,
)
from fastloop.fastloader.columns.crops import RandomResizedCrop
from fastloop.fastloader.columns.encoded_images import EncodedImages

SIDE, FLIP = 224, 0.5
"""The crops of the usual training on ImageNet."""
MOST_IMAGES, DRAWS, REPEATS = 64, 4, 2
"""Images that are tried, random crops of each, and measurements of each crop."""
BUDGET_NS = 1_000_000_000
"""CPU time after which no further image is tried."""


@dataclass(frozen=True)
class StoredImages:
    """A store of encoded images: a path for open_store, the cost of writing it and its savings.

    If the store had been there already, the figures are from the call that wrote it. `print` shows
    them in one line.
    """

    root: Path
    encoding: str
    num_images: int
    num_transcoded: int
    """JPEGs that got restart markers, with the same pixels."""
    num_resized: int
    """JPEGs that were made smaller. All other images are stored as they were."""
    bytes_before: int
    """Bytes of the images in the source."""
    bytes_after: int
    """Bytes of the images in the store."""
    seconds: float
    """Seconds that writing the store took."""
    cpu_seconds: float
    """CPU time of all threads meanwhile."""
    saved_ms: float | None
    """Milliseconds of CPU time by which a RandomResizedCrop(224) is faster than from the source, a
    mean of up to 64 images; None if none of them could be decoded."""

    def __fspath__(self) -> str:
        return str(self.root)

    @property
    def epochs_to_pay_back(self) -> float | None:
        """Number of epochs of crops that save the CPU time of writing; None if none do."""
        if self.saved_ms is None or self.saved_ms <= 0:
            return None
        return 1e3 * self.cpu_seconds / (self.num_images * self.saved_ms)

    def __str__(self) -> str:
        kept = self.num_images - self.num_transcoded - self.num_resized
        counts = {
            "with restart markers": self.num_transcoded,
            "resized": self.num_resized,
            "as they were": kept,
        }
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        parts.append(f"{self.bytes_before / 2**20:.1f} MiB before")
        parts.append(f"{self.bytes_after / 2**20:.1f} MiB after")
        if self.saved_ms is not None:
            parts.append(f"{self.saved_ms:.3f} ms of CPU time saved a crop")
        epochs = self.epochs_to_pay_back
        parts.append("not paid back" if epochs is None else f"paid back after {epochs:.1f} epochs")
        seconds = f"{self.seconds:.1f} s ({self.cpu_seconds:.1f} s of CPU time)"
        images = f"{self.num_images} images in {seconds}"
        return f"{self.root}: {images}: {', '.join(parts)}"


def save_stored(stored: StoredImages, folder: Path) -> None:
    """Write the figures of the store into its folder."""
    # without the path, as the folder may be moved
    facts = {name: value for name, value in asdict(stored).items() if name != "root"}
    (folder / IMAGES).write_text(json.dumps(facts, indent=1))


def load_stored(folder: Path) -> StoredImages | None:
    """The figures in a store's folder; None for a folder without encoded images."""
    path = folder / IMAGES
    return StoredImages(folder, **json.loads(path.read_text())) if path.is_file() else None


def measure_saving_ms(before: EncodedImages, after: EncodedImages) -> float | None:
    """Milliseconds by which a crop out of `after` is faster than one out of `before`, in one
    thread.

    None if none of the images that are tried can be decoded.
    """
    columns, begin_ns, saved_ns = [_crops_of(before), _crops_of(after)], cpu_ns(), []
    for index in spread_indices(len(before), MOST_IMAGES):
        try:
            # a first crop reads the file, and warms up
            for column in columns:
                _crop_ns(column, index, 0)
            saved_ns += [_gain_ns(columns, index, seed) for seed in range(DRAWS)]
        # a loader names the broken image when it gets there
        except (OSError, ValueError):
            continue
        if cpu_ns() - begin_ns > BUDGET_NS:
            break
    return float(np.mean(saved_ns)) / 1e6 if saved_ns else None


def _crops_of(images: EncodedImages) -> CroppedImages:
    pixels = pixel_format(None, None, "CHW")
    return CroppedImages(images, RandomResizedCrop(SIDE), FLIP, pixels, choose_crop_decoder(None))


def _gain_ns(columns: list[CroppedImages], index: int, seed: int) -> int:
    """Nanoseconds of CPU time that a crop of `after` saves."""
    # the least of the repeats: other programs can only add to them, by emptying the caches
    took_ns = [[_crop_ns(column, index, seed) for column in columns] for _ in range(REPEATS)]
    before, after = (min(repeats) for repeats in zip(*took_ns, strict=True))
    return before - after


def _crop_ns(column: CroppedImages, index: int, seed: int) -> int:
    out, indices = np.empty((1, column.spec.nbytes), np.uint8), np.array([index])
    start = cpu_ns()
    column.with_seed(seed).fill(indices, out)
    return cpu_ns() - start
