"""The outcome of `fastloop check against=`: the status of a comparison of two versions of the code.

`fastloop/reporting/version_text.py` writes the outcome as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastloop.core.result import Result
from fastloop.reporting.check_verdict import CheckStatus
from fastloop.reporting.comparable import delivers_same
from fastloop.reporting.comparison import CostChange, Pairs, no_longer_finishes
from fastloop.reporting.version_changes import Judgement, judge_change

Results = Mapping[str, Result]
"""Name of a job -> its result."""


@dataclass(frozen=True, kw_only=True)
class VersionOutcome:
    """The trials of two versions, and the conclusions from them."""

    base_label: str
    """The name of the base version in sentences."""
    new_label: str
    """The name of the new version in sentences."""
    base: Results
    """The results of the base version."""
    new: Results
    """The results of the new version."""
    changes: Sequence[CostChange]
    """The change in time of each benchmark of each job."""
    fail_above: float
    """Allowed regression in percent."""
    effort: str
    """The rounds and their time in words, such as `20 rounds of 4 trials of each, in 312 s`."""
    load: Sequence[str] = ()
    """Sentences about the load of the machine."""

    @property
    def status(self) -> CheckStatus:
        """The outcome of the check, which is also its exit status.

        Other samples count more than a slower job, and a slower job counts more than a job that
        can't be judged.
        """
        if self.other_samples:
            return CheckStatus.OTHER_DATA
        if self.broken or self.changes_judged("slower"):
            return CheckStatus.SLOWER
        is_complete = len({each.job for each in self.changes}) == len(self.base)
        if not self.changes or not is_complete or self.changes_judged(""):
            return CheckStatus.NOT_JUDGED
        return CheckStatus.NO_SLOWER

    @property
    def pairs(self) -> Pairs:
        """The results of each job that both versions have: name -> (base, new)."""
        return _pair_results(self.base, self.new)

    @property
    def other_samples(self) -> list[str]:
        """Names of the jobs that do not deliver the same samples in both versions."""
        return find_other_samples(self.base, self.new)

    @property
    def broken(self) -> list[str]:
        """Names of the jobs that finish only in the base."""
        return [name for name, pair in self.pairs.items() if no_longer_finishes(*pair)]

    def changes_judged(self, judgement: Judgement) -> list[CostChange]:
        """The changes with this judgement; the judgement is empty if nothing is sure yet."""
        return [each for each in self.changes if judge_change(each, self.fail_above) == judgement]


def find_other_samples(base: Results, new: Results) -> list[str]:
    """Names of the jobs that do not deliver the same samples in both sets."""
    return [
        name
        for name, (before, after) in _pair_results(base, new).items()
        # A job that has failed before its data was known has no samples.
        if before.num_samples
        and after.num_samples
        and (before.num_samples != after.num_samples or not delivers_same(before, after))
    ]


def _pair_results(base: Results, new: Results) -> Pairs:
    """The results of each job that both sets have: name -> (base, new)."""
    return {name: (base[name], new[name]) for name in base if name in new}
