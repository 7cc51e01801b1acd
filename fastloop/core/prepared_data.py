"""The data of a job, ready to be read by a loader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastloop.core.protocols import Dataset
from fastloop.core.types import Leaves


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A dataset that is ready to be read, either directly or from a store."""

    dataset: Dataset
    label: str
    """Name of the dataset, shown in tables."""
    fingerprint: str
    """Fingerprint of the data's source."""
    content: str
    """Fingerprint of the samples, independent of their order and source."""
    reference: Path
    """Folder of the same-data reference, see data/reference.py."""
    folder: Path
    """Folder of the store; equal to `reference` if the loader reads the dataset itself."""
    files: tuple[Path, ...] = ()
    """Files that the loader reads: the store's folder, or the files that the dataset lists."""
    num_samples: int
    sample: Leaves
    """dtype and shape of each leaf of a collated sample, without the batch dimension."""
    sample_nbytes: int
    """Bytes per sample; the mean, without padding, if samples differ in length."""
    num_classes: int | None = None
    """Number of classes; None: the samples have no class labels."""
    seconds: float = 0.0
    """Seconds that writing the store took, even if the store is reused now; 0 without one."""
    disk_mib: float = 0.0
    """Size of the store's files; 0 without one."""
    broken: tuple[tuple[int, str], ...] = ()
    """Index and reason of each sample that can't be decoded, if such samples may be skipped."""
    random: bool = False
    """True if samples are random; the reference then holds samples that data/random_samples.py has
    made repeatable."""
    returns_batches: bool = False
    """True if the dataset's own `__getitems__` returns a batch instead of a list of samples."""
    decoder_equivalence_id: str = ""
    """Equal for datasets with decoders that agree within 2/255, see data/decoder_agreement.py."""
    pixels_off: int = 0
    """Largest difference from Pillow's pixels, in 255ths, among the compared samples."""
