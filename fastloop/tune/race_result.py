"""The result of a race of configurations, and the rule by which its winner counts as faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.stats import MINIMUM_EFFECT, Ratio

SIGNIFICANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The costs that were measured in a race, and its outcome."""

    present: str
    winner: str
    """The fastest configuration in the race; `present` if nothing was faster."""
    seconds: Mapping[str, Mapping[int, float]]
    """Seconds, or another cost, by name and number of the round."""
    confirming: tuple[int, ...] = ()
    """Numbers of the rounds that confirm the gain."""
    gain: Ratio | None = None
    """Seconds of `present` relative to the winner's in the confirming rounds: 2 is twice as fast.
    None if there was nothing to confirm."""
    not_run: tuple[str, ...] = ()
    """The configurations that did not run: there was no room, or they promised too little."""
    ties: tuple[str, ...] = ()
    """Other configurations that have run and are not told apart from the winner."""
    is_cut: bool = False
    """True if the budget ended before a gain could be confirmed: nothing is decided."""

    @property
    def is_faster(self) -> bool:
        """True if the winner is faster beyond noise, and by enough to matter."""
        gain = self.gain
        # A surely faster configuration by less than 2 % is not worth a change.
        if gain is None or gain.estimate < 1 + MINIMUM_EFFECT:
            return False
        return gain.low > 1 and gain.p_value < SIGNIFICANCE

    def compare(self, name: str) -> Ratio | None:
        """Seconds relative to the winner's, in the rounds of the race in which both have run."""
        # Without the rounds that confirm, in which the others did not run.
        of_name, of_winner = self.seconds.get(name, {}), self.seconds[self.winner]
        shared = [each for each in of_name if each in of_winner and each not in self.confirming]
        return stats.ratio_or_range(
            [of_name[each] for each in shared], [of_winner[each] for each in shared]
        )
