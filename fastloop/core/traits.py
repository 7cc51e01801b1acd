"""Traits: optional attributes by which an option describes itself to the rest of fastloop.

An option declares a trait as a ClassVar or a property of the same name. An option without the
attribute has the default below, which is right for an option that implements only its Protocol.
Code outside the options asks for traits, never for an option's class.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DatasetTraits:
    """Traits of a dataset."""

    decodes: bool = False
    """True if each access to a sample decodes an image file. Decoding is then the limit of loaders
    that read the samples."""
    gathers: bool = False
    """True if each access to a sample copies a row of memory, or converts its bytes to floats.
    Gathering rows is then the limit of loaders that read the samples. If a dataset declares neither
    `decodes` nor `gathers`, its kind of work has no known limit."""


@dataclass(frozen=True, kw_only=True)
class DecoderTraits:
    """Traits of a decoder."""

    is_reference: bool = False
    """True for Pillow, as FastLoader's native decoder delivers the same pixels, bit by bit."""


@dataclass(frozen=True, kw_only=True)
class LoaderTraits:
    """Traits of a loader."""

    has_even_shares: bool = False
    """True if the loader follows the plan's order, so that all ranks (the processes that load
    together) get equally many batches; ranks then average gradients without a join, and the check
    of a job allows random crops."""
    is_on_device: bool = False
    """True if batches are built on the plan's device; the check of a job then refuses to prefetch
    batches on a GPU by a process."""
    reads_samples: bool = False
    """True if the loader, with a null store, reads the samples of the dataset; `without_store` then
    makes such a loader for a job with settings that rule out a store."""
    in_memory: bool = False
    """True if all rows are copied from the store into memory before the first epoch; the choice of
    a store then keeps the store, and tune counts the rows twice in its forecast of memory."""
    honours_batch_size: bool = True
    """False if the sizes of batches don't depend on `batch_size`; a trial then does not compare the
    sizes with it, and the tracker logs that they are the loader's own."""
    brings_data: bool = False
    """True if the loader provides the data itself and takes no dataset; a job for which the command
    line names no dataset then gets a UserDataset, and a trial does not compare the order of the
    samples with the plan's."""
    shuffles_itself: bool = False
    """True if the loader reads shards (files with parts of the data) as streams, and draws samples
    from a buffer for order=random; the check of a job then refuses orders other than random and
    sequential, and explain does not shorten the epochs."""
    is_user_code: bool = False
    """True if the loader is the user's own code, with work of an unknown kind; a trial then
    measures no limit for a dataset in memory, and no model is tried with the first sample."""
    unknown_files: str = ""
    """The reason why the loader may read files that belong neither to its store nor to its dataset,
    or an empty string if it reads no such files; the check of a job refuses a `cache` other than
    as_is for this reason, and the ladder of explain has the time of such a loader, if it is not
    built on torch's DataLoader, as UNATTRIBUTED."""


@dataclass(frozen=True, kw_only=True)
class PlacementTraits:
    """Traits of a placement."""

    runs_threads: bool = False
    """True if the placement leaves threads in its process. A worker that is forked from this
    process would wait forever for locks that these threads hold."""


@dataclass(frozen=True, kw_only=True)
class CollateTraits:
    """Traits of a collate."""

    is_default: bool = False
    """True for torch's default_collate without work in `finish`. The plan then has no collate."""
    defines_samples: bool = False
    """True if only the collate turns the dataset's items into samples. The reference of the
    same-data check then applies the collate, too."""


@dataclass(frozen=True, kw_only=True)
class TransformTraits:
    """Traits of a transform."""

    is_identity: bool = False
    """True if samples stay as they are. The transform is then not called."""
    converts_bytes: bool = False
    """True if the transform only converts uint8 leaves to scaled floats. A loader can do this while
    it gathers rows."""


@dataclass(frozen=True, kw_only=True)
class ExecutionTraits:
    """Traits of an execution."""

    is_identity: bool = False
    """True if the execution changes neither model nor step. It then also fits benchmarks without a
    model."""
    averages_gradients: bool = True
    """True if ranks can average their gradients inside the step."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkTraits:
    """Traits of a benchmark."""

    trains: bool = False
    """True if the model is trained. Ranks then average gradients in every step."""


@dataclass(frozen=True, kw_only=True)
class TrackerTraits:
    """Traits of a tracker."""

    imports: tuple[str, ...] = ()
    """Modules that every run needs and that take long to import. A command imports them at its
    start, while the server of its trials imports its own modules."""


def traits_of(kind: type[T], option: object) -> T:
    """The traits of an option, with the defaults of those that the option does not declare.

    kind: the class of the traits, such as LoaderTraits for a loader.
    """
    declared: Any = fields(kind)  # pyright: ignore[reportArgumentType]
    return kind(**{trait.name: getattr(option, trait.name, trait.default) for trait in declared})
