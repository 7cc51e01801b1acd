"""`dataset=custom`: the user's own map-style Dataset; `dataset._target_=` is the short form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, NonNegativeInt, PositiveFloat, model_validator
from torch.utils.data import IterableDataset

from fastloop.core.fingerprints import fingerprint, stable_repr
from fastloop.core.protocols import Samples
from fastloop.core.types import BadData, Unsupported, option
from fastloop.core.user_code import call, check_arguments, check_usable, error_line
from fastloop.data.random_samples import sample_fingerprint

FINGERPRINTED_SAMPLES = 16
"""Maximum number of samples with content that is a part of the fingerprint."""


@option
class CustomDataset:
    """Your own map-style Dataset: `target` is called in each process that reads the dataset."""

    target: Annotated[str, AfterValidator(check_usable)] | None
    """Import path `package.module.name` of a map-style Dataset, or of a function that returns a
    Dataset; None: the user has named no target, and the dataset can't be opened."""
    kwargs: dict[str, Any] | None
    """Keyword arguments of the target; None: no arguments."""
    num_classes: NonNegativeInt | None
    """Number of classes; 0: the largest label + 1; None: labels are not classes."""
    uint8_scale: PositiveFloat | None
    """Number by which uint8 values were divided to make the samples' floats, such as 255; None:
    floats are compared bit by bit."""
    version: str | int | None
    """A part of the fingerprint; None: no version. The fingerprint contains only the length and a
    few samples, so a change of other data needs another version."""
    ragged: bool | None
    """True if samples differ in the first dimension of their leaves; None: true with collate=pad,
    else false."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> CustomDataset:
        if self.target:
            check_arguments(self.target, self.kwargs or {})
        return self

    @property
    def label(self) -> str:
        """The name of the target without its module."""
        return (self.target or "custom").rpartition(".")[2]

    def fetch(self) -> str:
        """A fingerprint of target, arguments, version, scale, length and a few samples.

        A change of other parts of the data needs another `version`. Random samples, which differ
        when they are read again, are left out.
        """
        samples = self.open()
        last = len(samples) - 1
        # The indices are spread evenly from the first sample to the last.
        gaps = FINGERPRINTED_SAMPLES - 1
        indices = sorted({k * last // gaps for k in range(gaps + 1)})
        # Samples that differ at the second reading are random, and would change the fingerprint
        # every time.
        first, second = (
            [sample_fingerprint(samples, index) for index in indices] for _ in range(2)
        )
        kwargs = stable_repr(self.kwargs)
        rows = first if first == second else []
        # For samples of one length, the fingerprint is the same if `ragged` is null or false.
        ragged = ["ragged"] if self.ragged else []
        return fingerprint(
            "custom", self.target, kwargs, self.version, self.uint8_scale, last, rows, *ragged
        )

    def open(self) -> Samples:
        """The user's Dataset itself, without a wrapper.

        Raises Unsupported without a target, and BadData if the Dataset can't be created, is empty
        or is not map-style.
        """
        if not self.target:
            raise Unsupported("dataset=custom: dataset.target=package.module.name names a Dataset")
        dataset = call(self.target, self.kwargs or {})
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            kind = type(dataset).__name__
            reason = f"it returns {kind}, not a map-style Dataset"
            remedy = "loader=<module>.<function> measures the loader of it that a function returns"
            raise BadData(f"{self.target}: {reason}; {remedy}")
        try:
            count = len(dataset)
        except Exception as error:
            raise BadData(f"{self.target}: it has no length: {error_line(error)}") from error
        if not count:
            raise BadData(f"{self.target}: it has no samples")
        return dataset
