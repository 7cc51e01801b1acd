"""StoredImages, the result of write_store with `images`: the cost of writing the store of encoded
images, and its savings. They are also kept in a file of the store, for later calls."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

IMAGES = "images.json"
"""Name of the file of figures in a store of encoded images."""


@dataclass(frozen=True)
class StoredImages:
    """A store of encoded images: its path for open_store, the cost of writing it, and its savings.

    If the store existed already, the figures are from the call that wrote it. `print` shows them in
    one line.
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
    """CPU time of all threads in these seconds."""
    saved_ms: float | None
    """Milliseconds of CPU time that a RandomResizedCrop(224) from the store saves, compared with
    one from the source: the mean of up to 64 images. None if none of them could be decoded."""

    def __fspath__(self) -> str:
        return str(self.root)

    @property
    def epochs_to_pay_back(self) -> float | None:
        """Number of epochs after which the faster crops have saved the CPU time of writing; None if
        they never do."""
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
    # The path is left out, because the folder may be moved.
    facts = {name: value for name, value in asdict(stored).items() if name != "root"}
    (folder / IMAGES).write_text(json.dumps(facts, indent=1))


def load_stored(folder: Path) -> StoredImages | None:
    """The figures in a store's folder; None for a folder without encoded images."""
    path = folder / IMAGES
    return StoredImages(folder, **json.loads(path.read_text())) if path.is_file() else None
