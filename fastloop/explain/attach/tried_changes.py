"""The changes of a script's DataLoader that were tried, and their gains: attach_try.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from fastloop.core.machine_load import LoadSummary
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loss_comparison import LossComparison

TRIED = "attach_try.json"
"""Name of the file with a TriedLoop."""
PATCH = "attach.patch"
"""Name of the file with the patch of the recommended change."""


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """The gain of a change that was tried."""

    change: str
    """The name of the change."""
    predicted: float | None
    """Share of the loop's time that the model predicted it to save; None: nothing was predicted."""
    gain: Estimate | None
    """Share of the loop's time that it saves; None: its runs failed, or there was no time for
    them."""
    rounds: int
    is_least: bool = False
    """True: `predicted` is a lower bound, because the observed run shows only a part of the
    saving."""
    failure: str = ""
    """The last line of the run that failed."""


@dataclass(frozen=True, kw_only=True)
class TriedLoop:
    """The changes of a loop's DataLoader that were tried, the one that saves most first."""

    place: str
    made_at: str
    batches: int
    """Number of batches of the loop in each run."""
    seconds: float
    """Time of the loop in a run without a change, the median."""
    changes: tuple[TriedChange, ...]
    minutes: float
    """The time limit for all runs together."""
    least_minutes: float
    """Minutes that are enough to try one change, by the longest of the runs that would be
    repeated."""
    is_out_of_time: bool
    """True: the rounds ended because the time was used up. False: more time would have added no
    round."""
    is_interrupted: bool = False
    """True: a signal, such as that of Ctrl-C, has ended the rounds."""
    best: str | None
    """The recommended change; None: none saves anything for certain."""
    same_samples: bool | None = None
    """True: with the recommended change the first pass has the samples that it has without. None:
    this is not known, or no change is recommended."""
    not_compared: str = ""
    """The reason why it is not known whether the samples are the same."""
    losses: LossComparison = field(default_factory=LossComparison)
    """The losses with the recommended change beside those without it."""
    patch: str = ""
    """The recommended change for `git apply`; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Sentences on arguments of DataLoader that have no effect with the recommended change, and on
    values that the patch replaces."""
    advice: str = ""
    """A sentence on the call to change by hand; empty if there is a patch, or nothing to change."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the rounds."""


def to_json(tried: TriedLoop) -> str:
    """The text of attach_try.json."""
    return json.dumps({"schema": 1, **asdict(tried)}, indent=1) + "\n"
