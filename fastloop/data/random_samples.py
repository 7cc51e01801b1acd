"""Make random samples, such as augmented ones, repeatable for the same-data check, and refuse to
store them, because a store would repeat one draw of each sample in every epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np
import optree
import torch

from fastloop.core.fingerprints import fingerprint
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Dataset, Samples, Uint8Images
from fastloop.core.types import Tree, Unsupported
from fastloop.core.user_code import error_line
from fastloop.data.dataset_batches import returns_batches
from fastloop.data.ragged import is_ragged
from fastloop.data.spread_indices import spread_indices
from fastloop.data.store_leaves import bytes_of

PROBED_SAMPLES = 16
"""Maximum number of samples that are read twice to find out whether they are random."""
_SEEDED = RLock()
"""Held while the generators, which belong to all threads, are seeded."""
SEEDS = 1, 2
"""Seeds of the generators for two readings of a sample."""
Value = tuple[Any, ...]
Plain = bool | int | float | complex | str | bytes


@dataclass(frozen=True)
class SeededSamples:
    """Samples, each read with the generators of torch, numpy and Python seeded by its index."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        # In FastLoader's threads a mode redirects torch's random functions to a generator of the
        # sample. Here they have to draw from the generators that the index has seeded.
        with torch._C.DisableTorchFunction(), seed_generators(index):
            return self.samples[index]


@dataclass(frozen=True)
class SeededDataset:
    """A dataset with its samples read as SeededSamples."""

    dataset: Dataset

    @property
    def label(self) -> str:
        """The label of the dataset."""
        return self.dataset.label

    @property
    def num_classes(self) -> int | None:
        """The number of classes of the dataset."""
        return self.dataset.num_classes

    @property
    def uint8_scale(self) -> float | None:
        """The scale of the dataset's uint8 values."""
        return self.dataset.uint8_scale

    def fetch(self) -> str:
        """The fingerprint of the dataset."""
        return self.dataset.fetch()

    def open(self) -> SeededSamples:
        """The dataset's samples, read one at a time."""
        return SeededSamples(self.dataset.open())


def needs_seeds(dataset: Dataset, samples: Samples) -> bool:
    """True for samples that are random, and repeatable once the generators are seeded.

    False for other random samples, and for samples that some loaders do not read one by one and
    unchanged: ragged samples, uint8 images, and samples of a `__getitems__` that returns batches.
    """
    if is_ragged(dataset) or isinstance(dataset, Uint8Images) or not _are_random(samples):
        return False
    return not _are_random(SeededSamples(samples)) and not returns_batches(samples)


def make_repeatable(prepared: PreparedData) -> PreparedData:
    """The data with a SeededDataset, for random samples; unchanged for others.

    Raises Unsupported for a store of random samples: it delivers the same draw in every epoch.
    """
    if not prepared.random:
        return prepared
    if prepared.folder != prepared.reference:
        reason = f"the samples of {prepared.label} are random, and a store repeats one draw of them"
        raise Unsupported(
            f"{reason}; loader=raw, or loader=fastloop with loader.store=null, draws again; "
            "same_data=false does not compare them"
        )
    return replace(prepared, dataset=SeededDataset(prepared.dataset), random=False)


def sample_fingerprint(samples: Samples, index: int) -> str:
    """A fingerprint of the sample or, if the sample can't be read, the line of its error."""
    try:
        leaves = optree.tree_leaves(samples[index])
    # The preparation of the dataset reports a sample that can't be read.
    except Exception as error:
        return error_line(error)
    return fingerprint([_bits(leaf) for leaf in leaves])


def _are_random(samples: Samples) -> bool:
    """True if a sample differs when it is read again."""
    first, second = (
        [sample_fingerprint(samples, index) for index in range(min(PROBED_SAMPLES, len(samples)))]
        for _ in range(2)
    )
    return first != second


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and restore them at the end.

    Another thread waits until this one has restored them.
    """
    with _SEEDED:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        # torch.manual_seed would also seed the generators of all devices, which are not restored.
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


def _bits(leaf: Any) -> object:
    # The bytes are read as uint8, because numpy may lack the dtype.
    if isinstance(leaf, torch.Tensor):
        return str(leaf.dtype), tuple(leaf.shape), bytes_of(leaf.detach().cpu()).tobytes()
    if isinstance(leaf, np.ndarray):
        return str(leaf.dtype), leaf.shape, leaf.tobytes()
    # The leaf is an image of PIL, or else a number or a text.
    return (leaf.size, leaf.tobytes()) if hasattr(leaf, "tobytes") else leaf


def refuse_random(samples: Any, name: str, remedy: str) -> None:
    """Raise ValueError if one of up to 16 samples is random; the generators stay as they are.

    name, remedy: the beginning and the end of the message.
    """
    # Each sample is read twice, with the generators of torch, numpy and Python seeded differently.
    # It is random if the values differ. It is also random if reading draws from a generator, which
    # then ends in two different states: a random crop may happen to be the same twice. A Dataset
    # that seeds the generators itself, as by torch.manual_seed(index), has equal values and states.
    for index in spread_indices(len(samples), PROBED_SAMPLES) if len(samples) else ():
        first, second = (_read_seeded(samples, index, seed) for seed in SEEDS)
        if drawn_from := first.other_states(second):
            reason = f"it draws from the generator of {' and '.join(drawn_from)}"
        elif first.values != second.values:
            reason = "it differs when it is read again"
        else:
            continue
        problem = f"{name} has random samples (sample {index}: {reason})"
        raise ValueError(
            f"{problem}, and a store repeats one draw of each in every epoch: {remedy}"
        )


@dataclass(frozen=True)
class _Reading:
    """A reading of a sample with seeded generators."""

    values: list[Value]
    """The bits of the sample's leaves; empty if it can't be read."""
    states: dict[str, Value]
    """The states of the generators that the reading has changed, by the library's name."""

    def other_states(self, other: _Reading) -> list[str]:
        """The generators that both readings have left in different states."""
        states = self.states.items()
        return [name for name, state in states if other.states.get(name, state) != state]


def _read_seeded(samples: Any, index: int, seed: int) -> _Reading:
    # A sample that can't be read is reported when the store is written.
    with seed_generators(seed):
        before = _states()
        try:
            leaves = optree.tree_leaves(samples[index])
        except Exception:
            return _Reading([], {})
        after = _states()
    changed = {name: state for name, state in after.items() if state != before[name]}
    return _Reading([value for leaf in leaves if (value := _value(leaf))], changed)


def _states() -> dict[str, Value]:
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": (bytes(torch.get_rng_state().numpy()),),
        "numpy": (kind, bytes(np.asarray(keys)), *rest),
        "random": random.getstate(),
    }


def _value(leaf: Any) -> Value:
    """The bits by which two readings of a leaf are compared; empty for a leaf that no store
    holds."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or leaf.is_nested:
            return ()
        leaf = leaf.detach().cpu().contiguous()
        data = leaf.reshape(-1).view(torch.uint8) if leaf.numel() else leaf
        return str(leaf.dtype), tuple(leaf.shape), bytes(data.numpy()) if leaf.numel() else b""
    if isinstance(leaf, np.ndarray | np.generic):
        return str(leaf.dtype), leaf.shape, leaf.tobytes()
    return (repr(leaf),) if isinstance(leaf, Plain) else ()
