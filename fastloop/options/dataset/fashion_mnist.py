"""`dataset=fashion_mnist`: torchvision's FashionMNIST, with PIL images converted by ToTensor."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torchvision
from PIL.Image import Image
from pydantic import PositiveFloat, PositiveInt

from fastloop.core.atomic_files import hold_lock
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.types import BadData, option

SPLITS = {True: "train", False: "t10k"}
"""Value of the setting `train` -> name of the split in the names of the files."""


@dataclass(frozen=True)
class RepeatedSamples:
    """Samples that are repeated `times` times; each access converts the image again."""

    samples: torchvision.datasets.FashionMNIST
    """torchvision's dataset, with its transform."""
    times: int
    """Number of times that each sample occurs."""

    def __len__(self) -> int:
        return len(self.samples) * self.times

    def __getitem__(self, index: int) -> tuple[torch.Tensor | np.ndarray, int]:
        return self.samples[index % len(self.samples)]


@option
class FashionMnist:
    """torchvision's FashionMNIST, `repeat` times: (float32 (1, 28, 28) in 0..1, int) samples."""

    num_classes: ClassVar[int] = 10
    uint8_scale: ClassVar[float] = 255.0
    gathers: ClassVar[bool] = True
    root: str
    """Path of the folder that contains FashionMNIST/raw, with the files in torchvision's layout."""
    train: bool
    """True: the 60,000 images for training; False: the 10,000 images for testing."""
    download: bool
    """True: missing files are downloaded; False: missing files are an error."""
    download_timeout_s: PositiveFloat
    """Time limit of each network operation in seconds."""
    repeat: PositiveInt
    """Number of times that each image occurs in an epoch."""

    @property
    def label(self) -> str:
        """The name, with the number of repetitions if there are several."""
        return "fashion_mnist" + (f" (real images x {self.repeat})" if self.repeat > 1 else "")

    @property
    def folder(self) -> Path:
        """The folder of the four IDX files."""
        return Path(self.root) / "FashionMNIST" / "raw"

    def fetch(self) -> str:
        """A fingerprint of the IDX files of the split, and of `repeat`.

        Downloads missing files if `download` is true. Raises BadData if files are missing then.
        """
        if not all(path.exists() for path in self._files(*SPLITS.values())):
            self._fetch_missing()
        parts = [file_fingerprint(path) for path in self._files(SPLITS[self.train])]
        return fingerprint("fashion_mnist", self.repeat, parts)

    def files(self) -> list[Path]:
        """The two IDX files of the split."""
        return self._files(SPLITS[self.train])

    def open(self) -> RepeatedSamples:
        """The samples; raises BadData if a file is truncated, empty or not IDX."""
        to_tensor = torchvision.transforms.ToTensor()
        return RepeatedSamples(self._torchvision(to_tensor, download=False), self.repeat)

    def open_uint8(self) -> RepeatedSamples:
        """Samples (uint8 array of shape (28, 28, 1), int), each still made from a PIL image."""
        return RepeatedSamples(self._torchvision(_pixels, download=False), self.repeat)

    def _fetch_missing(self) -> None:
        """Download the missing files; raises BadData if `download` is false, or for a failure."""
        if not self.download:
            raise BadData(self._explain("dataset.download=false"))
        try:
            # Two commands, or two ranks of a job, may find an empty folder at the same time.
            with hold_lock(Path(self.root) / "FashionMNIST"):
                self._torchvision(None, download=True)
        except OSError as error:
            raise BadData(self._explain(str(error))) from error

    def _files(self, *splits: str) -> list[Path]:
        """Paths of the files of images and of labels of these splits."""
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        return [self.folder / f"{split}-{kind}" for split in splits for kind in kinds]

    def _torchvision(
        self, transform: Callable[[Any], Any] | None, download: bool
    ) -> torchvision.datasets.FashionMNIST:
        """torchvision's dataset; raises BadData if its files are missing or invalid.

        transform: applied to each PIL image; None: images stay PIL images.
        """
        try:
            with _socket_timeout(self.download_timeout_s):
                samples = torchvision.datasets.FashionMNIST(
                    self.root, train=self.train, download=download, transform=transform
                )
        except (RuntimeError, ValueError, OSError, AssertionError, KeyError) as error:
            # torchvision asserts some conditions without a message.
            first, *others = str(error).splitlines() or ["wrong header"]
            # If a download fails, the first line names the file, and the last line the reason.
            reason = f"{first} {others[-1]}" if others and first.endswith(":") else first
            raise BadData(self._explain(reason)) from error
        # torchvision does not compare the numbers of images and labels. Without this check, a
        # truncated file of labels would cause an error only during an epoch.
        if len(samples.data) != len(samples.targets):
            counts = f"{len(samples.data)} images, {len(samples.targets)} labels"
            raise BadData(f"{self.folder}: {counts} ({SPLITS[self.train]})")
        return samples

    def _explain(self, reason: str) -> str:
        """The message for files that are not IDX data, or for missing files, with advice."""
        if all(path.exists() for path in self._files(*SPLITS.values())):
            images, labels = self._files(SPLITS[self.train])
            return f"{images} or {labels}: not IDX data: {reason}"
        files = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
        return (
            f"dataset.root={self.root}: FashionMNIST not found ({reason}); "
            f"put {files} into {self.folder}, or use dataset=digits, which needs no download"
        )


def _pixels(image: Image) -> np.ndarray:
    """The pixels of a grey image as a uint8 array of shape (height, width, 1)."""
    return np.asarray(image)[..., np.newaxis]


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """A context in which each network operation has this time limit."""
    # torchvision calls urlopen without a timeout. On a network that drops packets, a download would
    # wait forever.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
