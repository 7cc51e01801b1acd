"""`dataset=digits`: scikit-learn's 1,797 handwritten digits, which need no download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fastloop.core.fingerprints import fingerprint
from fastloop.core.types import option


@dataclass(frozen=True)
class DigitSamples:
    """Samples (float32 image of shape (1, 8, 8) in 0..1, int); each access converts one image."""

    images: np.ndarray
    """uint8 (digits, 8, 8), with pixels from 0 to 16."""
    targets: list[int]
    """The class of each digit, from 0 to 9."""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).unsqueeze(0)
        return image.to(torch.float32).div(Digits.uint8_scale), self.targets[index]


@option
class Digits:
    """scikit-learn's handwritten digits: 8x8 images of ten classes, with pixels from 0 to 16."""

    label: ClassVar[str] = "digits"
    num_classes: ClassVar[int] = 10
    uint8_scale: ClassVar[float] = 16.0
    gathers: ClassVar[bool] = True

    def fetch(self) -> str:
        """A fingerprint of the version of scikit-learn; the data is a part of this package."""
        return fingerprint("digits", version("scikit-learn"))

    def files(self) -> list[Path]:
        """The file with the data in scikit-learn's package."""
        return [_package_folder() / "datasets" / "data" / "digits.csv.gz"]

    def open(self) -> DigitSamples:
        """All digits in memory as uint8 (0.1 MiB)."""
        # This reads the file as sklearn.datasets.load_digits does. Importing scikit-learn would
        # take a second.
        table = np.loadtxt(self.files()[0], np.uint8, delimiter=",")
        images = np.ascontiguousarray(table[:, :-1]).reshape(-1, 8, 8)
        return DigitSamples(images, table[:, -1].astype(int).tolist())

    def open_uint8(self) -> list[tuple[np.ndarray, int]]:
        """Samples (uint8 image of shape (8, 8, 1), int)."""
        samples = self.open()
        return list(zip(samples.images[..., np.newaxis], samples.targets, strict=True))


def _package_folder() -> Path:
    """The folder of scikit-learn's package, found without importing the package."""
    spec = find_spec("sklearn")
    assert spec is not None  # fastloop requires it
    assert spec.origin is not None
    return Path(spec.origin).parent
