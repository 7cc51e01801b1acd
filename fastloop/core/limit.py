"""The limit of a benchmark: the rate at which this machine can do one kind of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pydantic
from pydantic.dataclasses import dataclass

from fastloop.core import stats

LimitKind = Literal["rows", "converted rows", "decoded images", "cropped images", "copies", "steps"]
"""The kind of work.

rows: gathering rows in memory; converted rows: gathering rows and making floats of their bytes;
decoded images: decoding files, and resizing them if the dataset does; cropped images: decoding,
cropping, resizing and normalizing; copies: copying from pinned memory to the device; steps: the
job's own steps on batches that are on the device already.
"""


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(ser_json_inf_nan="constants"))
class LimitOrigin:
    """Kind and measurement of the limit of one trial."""

    kind: LimitKind
    engine: str = ""
    """The fastest engine of those that were tried: a gather, such as `np.take`, or a decoder, such
    as `turbojpeg`; several if ranks differ. Empty for copies and steps."""
    cores: int | None = None
    """Number of cores that worked, of all ranks; None for copies and steps."""
    memcpy_fraction: float | None = None
    """Rate of the limit / rate of copying the same bytes one after the other; rows only."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit in samples per second, with the kind of work."""

    samples_per_s: float
    origin: LimitOrigin


def typical_origin(origins: Sequence[LimitOrigin | None]) -> LimitOrigin | None:
    """The kind and engine of most trials of a job, with the median of their memcpy_fraction; None
    if no trial has an origin."""
    known = [origin for origin in origins if origin is not None]
    if not known:
        return None
    # memcpy_fraction differs in every trial, so it is left out when equal origins are counted.
    alike = [replace(origin, memcpy_fraction=None) for origin in known]
    typical, _ = Counter(alike).most_common(1)[0]
    same = [origin for origin, like in zip(known, alike, strict=True) if like == typical]
    shares = [origin.memcpy_fraction for origin in same if origin.memcpy_fraction is not None]
    return replace(typical, memcpy_fraction=stats.median(shares) if shares else None)


def merge_origins(ranks: Sequence[LimitOrigin | None]) -> LimitOrigin | None:
    """The origin of a sum of the limits that the ranks of a trial measured at the same time."""
    known = [origin for origin in ranks if origin is not None]
    if not known:
        return None
    shares = [origin.memcpy_fraction for origin in known if origin.memcpy_fraction is not None]
    cores = [origin.cores for origin in known if origin.cores is not None]
    return replace(
        known[0],
        engine=", ".join(sorted({origin.engine for origin in known})),
        cores=sum(cores) if cores else None,
        memcpy_fraction=stats.mean(shares) if shares else None,
    )
