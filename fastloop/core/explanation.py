"""The explanation of a job as values: verdict, ladder and what-ifs, as in explain.json."""

from __future__ import annotations

from enum import StrEnum

from pydantic.dataclasses import dataclass

from fastloop.core.limit import LimitOrigin
from fastloop.core.machine_load import LoadSummary
from fastloop.core.stats import Estimate

EXPLANATION_FILE = "explain.json"
TIMELINE_SVG, TIMELINE_TRACE = "timeline.svg", "timeline.json"


class Rung(StrEnum):
    """A part of an epoch, by the word that a verdict uses for it."""

    STEP = "step"
    """Steps on batches that are on the device already."""
    COPY = "copy"
    """Placement of batches on the device."""
    START_UP = "start-up"
    """Wait for the first batch of an epoch, beyond that for a later one; not run by itself."""
    HAND_OFF = "hand-off"
    """The loader's own work around batches that are ready: its sampler, processes and queues."""
    COLLATE = "collate"
    TRANSFORM = "transform"
    DECODE = "decode"
    """Making samples; with files read from the page cache, where reading is no rung of its own."""
    READ = "read"
    """Reading files, or the rows of a store."""
    UNATTRIBUTED = "unattributed"
    """The rest of a loader that can't be taken apart."""


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A part of an epoch."""

    rung: Rung
    exposed_ms: Estimate
    """By how much the epoch is longer for it, per batch."""
    share: Estimate
    """The same as a share of the epoch."""
    hidden_ms: float | None
    """The rest of its work, done while the loop stepped or another worker worked; None: unknown."""
    sure_greatest: float
    """How sure it is, from 0 to 1, that no other part but the step is greater."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """An epoch as the sum of its parts, and what a perfect loader would make of it."""

    rows: tuple[LadderRow, ...]
    batches: int
    """In a whole epoch."""
    epoch_s: Estimate
    """The job as it is."""
    perfect_s: Estimate
    """The steps on batches that are on the device already: a perfect loader."""
    wait_share: Estimate
    """The share of the epoch that a perfect loader would save."""
    explained: float
    """Sum of the parts as a share of the epoch; parts below zero count as none."""
    residue: float
    """Share of the epoch by which the parts miss the whole, less what noise may be the cause of."""
    start_up_s: Estimate
    """What the job's epochs take for their first batch, beyond that for another, and to end."""
    noise: float
    """Relative standard deviation of a pass, beyond what all passes of a round share."""
    slower_steps: Estimate | None
    """Share of the epoch by which steps take longer between loads than one after another, as a
    second method tells, the time in next(); None if loading overlaps steps."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The limiting part of a job, and how sure that is."""

    word: Rung
    sentences: tuple[str, ...]
    """The first one says whether the loader is worth touching."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change, the predicted gain and, if it was tried, the realised one."""

    change: str
    command: str
    """The command line that measures the changed job."""
    predicted_gain: Estimate | None
    """Share of an epoch that the change saves, negative if it costs time, with a 90 % interval;
    None if the model misses the job as it is, or nothing that was measured tells."""
    realised_gain: Estimate | None
    """None: it was not tried."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A common cause of a slow loop, which was looked for."""

    name: str
    is_found: bool | None
    """None: it is not known."""
    text: str
    """The facts that are known of it."""


@dataclass(frozen=True, kw_only=True)
class InstrumentedEpoch:
    """The epoch of the instrumented pass, which timeline.svg and timeline.json show."""

    seconds: float
    batches: int
    coverage: float
    """Share of the seconds that the events of the loop account for."""
    shares: dict[str, float]
    """Share of the seconds by what the loop does, the greatest first."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The answer for one job."""

    name: str
    benchmark: str
    device: str
    rounds: int
    window_batches: int
    """Batches of an epoch that each pass ran; fewer than the whole epoch if that is long."""
    model_ratio: float
    """The model's time of the job as it is, divided by the measured one."""
    loader_samples_per_s: float
    """Of the loader alone, without steps."""
    limit_samples_per_s: float | None
    """What this machine can do of that kind of work; None if no such limit is measured."""
    limit_origin: LimitOrigin | None
    verdict: Verdict
    ladder: Ladder
    what_ifs: tuple[WhatIf, ...]
    """Tried ones first, then by the predicted gain."""
    best: WhatIf | None
    """The change with the greatest realised gain that is beyond noise."""
    timeline: InstrumentedEpoch
    causes: tuple[Cause, ...] = ()
    """The commonest causes that the job can have, in the order in which they were looked for."""
    machine_load: LoadSummary | None = None
    """What other programs used of the machine during the passes; None in older files."""
