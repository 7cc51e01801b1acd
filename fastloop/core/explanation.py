"""The explanation of a job as values: verdict, ladder and what-ifs, as in explain.json."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fastloop.core.limit import LimitOrigin
from fastloop.core.machine_load import LoadSummary
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate

EXPLANATION_FILE = "explain.json"
"""Name of the file with an Explanation, in the job's folder."""
TIMELINE_SVG, TIMELINE_TRACE = "timeline.svg", "timeline.json"
"""Names of the files that show the instrumented pass, as a picture and as a trace."""


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A row of a ladder: a part of an epoch."""

    rung: Part
    """The part. Except for START_UP, a part is also a rung: the job without the parts above it."""
    exposed_ms: Estimate
    """Milliseconds per batch by which this part makes the epoch longer."""
    share: Estimate
    """`exposed_ms` as a share of the epoch."""
    hidden_ms: float | None
    """Milliseconds per batch of the rest of the part's work. They cost no time, because the loop
    steps or another worker works meanwhile. None: not known."""
    sure_greatest: float
    """Probability, from 0 to 1, that this part is the greatest of all parts other than the step; 0
    for the step."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """An epoch as the sum of its parts, and the same epoch with a perfect loader."""

    rows: tuple[LadderRow, ...]
    batches: int
    """Number of batches in a whole epoch."""
    epoch_s: Estimate
    """Seconds of an epoch of the job as it is."""
    perfect_s: Estimate
    """Seconds of an epoch with a perfect loader: the steps on batches that are on the device
    already."""
    wait_share: Estimate
    """The share of the epoch that a perfect loader would save."""
    explained: float
    """Sum of the parts as a share of the epoch; a part below zero counts as zero."""
    residue: float
    """Sum of the parts below zero as a share of the epoch, as a positive number. Only the distance
    from zero to the interval of a part counts, because noise explains the rest."""
    start_up_s: Estimate
    """Seconds by which the first batch of an epoch takes longer than a later one, plus the seconds
    that the epoch takes to end."""
    noise: float
    """Relative standard deviation of a pass, without the noise that all passes of a round share. A
    pass measures epochs of one rung; a round has a pass of each rung."""
    slower_steps: Estimate | None
    """Share of the epoch by which steps that alternate with loading are slower than steps that
    follow each other. A second method, the time in next(), gives this share. None: loading overlaps
    steps."""
    rounds: int
    """Number of rounds."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The limiting part of a job, and how sure that is."""

    word: Part
    """The limiting part; UNATTRIBUTED also if the measurements do not tell which part limits."""
    sentences: tuple[str, ...]
    """Sentences without full stops; the first says whether the loader is worth improving."""

    @property
    def text(self) -> str:
        """The sentences as a paragraph."""
        return ". ".join(self.sentences) + "."


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change of the job, its predicted gain and, if it was tried, its realised gain."""

    # The fields are texts in place of a Change of fastloop.explain.change, because reports read
    # them from explain.json.
    change: str
    """Name of the change."""
    command: str
    """The command line that measures the changed job."""
    predicted_gain: Estimate | None
    """Share of an epoch that the change saves, negative if it costs time, with a 90 % interval.
    None if the model misses the time of the job as it is, or no measurement allows a prediction."""
    realised_gain: Estimate | None
    """Share of an epoch that the change saved when it was tried; None: it was not tried."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A common cause of a slow loop, and whether it was found."""

    name: str
    """A name of fastloop.explain.cause_names."""
    is_found: bool | None
    """True if the loop is slow for this cause, False if it is not; None: not known."""
    text: str
    """The known facts about the cause."""
    advice: str = ""
    """The change that removes the cause; empty if the cause was not found, or if `text` names the
    change."""


@dataclass(frozen=True, kw_only=True)
class InstrumentedEpoch:
    """The epoch of the instrumented pass, which timeline.svg and timeline.json show."""

    seconds: float
    """Seconds of the epoch."""
    batches: int
    """Number of batches of the epoch."""
    coverage: float
    """Share of the seconds that the events of the loop account for."""
    shares: dict[str, float]
    """Activity of the loop -> its share of the seconds, the greatest first."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The answer for one job."""

    name: str
    """Name of the job."""
    benchmark: str
    """Name of the benchmark that is explained."""
    device: str
    """Device of the steps."""
    rounds: int
    """Number of rounds; a round measures each rung of the ladder once."""
    window_batches: int
    """Batches of an epoch that each pass ran; fewer than the whole epoch if that is long."""
    model_ratio: float
    """The time that the model of a loader predicts for the unchanged job, divided by the measured
    time."""
    loader_samples_per_s: float
    """Samples per second of the loader alone, without steps."""
    limit_samples_per_s: float | None
    """Samples per second at which this machine can do the loader's kind of work; None if no such
    limit is measured."""
    limit_origin: LimitOrigin | None
    """Kind of work, engine and cores of the limit; None without a limit."""
    verdict: Verdict
    ladder: Ladder
    what_ifs: tuple[WhatIf, ...]
    """Changes that were tried come first, then the others by predicted gain."""
    best: WhatIf | None
    """The change with the greatest realised gain, if that gain is beyond noise and at least
    LEAST_GAIN of fastloop.explain.change; None if no change has such a gain."""
    timeline: InstrumentedEpoch
    causes: tuple[Cause, ...] = ()
    """The commonest causes that the job can have, in the order in which they were looked for."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the passes; None in older files."""
