"""`dataset=custom`: a map-style Dataset of one's own; `dataset._target_=` is short for it."""

from __future__ import annotations

import re
from typing import Annotated, Any

import numpy as np
import optree
import torch
from pydantic import AfterValidator, NonNegativeInt, PositiveFloat, model_validator
from torch.utils.data import IterableDataset

from fastloop.files import fingerprint
from fastloop.own import called, check_arguments, said_of, usable
from fastloop.protocols import Samples
from fastloop.rows import bytes_of
from fastloop.types import BadData, Unsupported, option

PROBED_SAMPLES = 16
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@option
class Custom:
    """The samples of the Dataset that `target` gives, made in the process that reads it."""

    target: Annotated[str, AfterValidator(usable)] | None
    kwargs: dict[str, Any] | None
    num_classes: NonNegativeInt | None
    uint8_scale: PositiveFloat | None
    version: str | int | None

    @model_validator(mode="after")
    def _arguments_fit(self) -> Custom:
        if self.target:
            check_arguments(self.target, self.kwargs or {})
        return self

    @property
    def label(self) -> str:
        """The name without its module."""
        return (self.target or "custom").rpartition(".")[2]

    def fetch(self) -> str:
        """A fingerprint of what can be seen of the data without reading all of it: arguments,
        version, scale, length and a few samples; a change beyond them needs another version.

        Samples that are not the same when they are read again, being random, are left out.
        """
        samples = self.open()
        last = len(samples) - 1
        probed = {place * last // (PROBED_SAMPLES - 1) for place in range(PROBED_SAMPLES)}
        seen, again = ([_shown(samples, index) for index in sorted(probed)] for _ in range(2))
        kwargs = ADDRESS.sub("", repr(self.kwargs))
        rows = seen if seen == again else []
        asked = self.target, kwargs, self.version, self.uint8_scale
        return fingerprint("custom", *asked, last, rows)

    def open(self) -> Samples:
        """The user's own Dataset, nothing around it.

        Raises BadData where there is none, or where it is empty or not map-style.
        """
        if not self.target:
            raise Unsupported("dataset=custom: dataset.target=package.module.name names a Dataset")
        made = called(self.target, self.kwargs or {})
        if isinstance(made, IterableDataset) or not hasattr(made, "__getitem__"):
            kind = type(made).__name__
            said = f"it gives {kind}, no map-style Dataset; loader._target_= takes iterables"
            raise BadData(f"{self.target}: {said}")
        try:
            count = len(made)
        except Exception as error:
            raise BadData(f"{self.target}: it has no length: {said_of(error)}") from error
        if not count:
            raise BadData(f"{self.target}: it has no samples")
        return made


def _shown(samples: Samples, index: int) -> str:
    """Changes with the sample, or with why it can't be read."""
    try:
        leaves = optree.tree_leaves(samples[index])
    except Exception as error:  # preparing says which sample it is
        return said_of(error)
    return fingerprint([_bits(leaf) for leaf in leaves])


def _bits(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):  # whose dtype numpy may not have
        return str(leaf.dtype), tuple(leaf.shape), bytes_of(leaf.detach().cpu()).tobytes()
    if isinstance(leaf, np.ndarray):
        return str(leaf.dtype), leaf.shape, leaf.tobytes()
    return leaf
