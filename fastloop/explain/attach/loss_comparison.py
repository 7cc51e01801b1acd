"""The losses of a script with a change and without it, compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Loss = tuple[int, float]
"""A call of backward(): the number of batches that the loop has received before the call, and the
value on which backward() is called."""
OPPOSITE = 2.0
"""The greatest possible difference of two values, relative to the greater one: that of a value and
its negative."""


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """The comparison of a script's losses with a change to its losses without the change.

    The losses are the values on which the script calls backward() in its first pass.
    """

    same: bool | None = None
    """True: the losses are equal to the last digit. None: this is not known, or there is no
    change."""
    count: int = 0
    """Number of calls that were compared."""
    difference: float | None = None
    """The greatest difference of two losses, as a share of the greater one of them; None: no losses
    were compared."""
    from_batch: int | None = None
    """The first batch, counted from 1, with another loss; None: no loss differs."""
    not_compared: str = ""
    """The reason why it is not known whether the losses are the same."""


def compare_losses(
    first: Sequence[Loss], again: Sequence[Loss], changed: Sequence[Loss]
) -> LossComparison:
    """Compare the losses of a run with a change with those of two runs without it.

    first, again: the losses of two runs of the script as it is. If they differ from each other, the
    change is not judged. changed: the losses of a run with the change.

    >>> compare_losses([(1, 0.5)], [(1, 0.5)], [(1, 0.4)]).from_batch
    1
    """
    if not (first or again or changed):
        reason = "the script was not seen to call backward() on a single number"
        return LossComparison(not_compared=reason)
    if len(first) != len(again):
        counts = f"{len(first)} times in one run, {len(again)} in another"
        return LossComparison(not_compared=f"without it backward() is called {counts}")
    # The script sets no seed, or its device adds numbers in an order that is left to chance.
    if any(_find_differences(first, again)):
        return LossComparison(not_compared="the script has other losses in each run")
    if len(first) != len(changed):
        reason = f"backward() is called {len(changed)} times with it, {len(first)} times without"
        return LossComparison(not_compared=reason)
    differences = _find_differences(first, changed)
    batches = [batch for (batch, _), each in zip(changed, differences, strict=True) if each]
    return LossComparison(
        same=not batches,
        count=len(first),
        difference=max(differences),
        from_batch=min(batches, default=None),
    )


def _find_differences(losses: Sequence[Loss], others: Sequence[Loss]) -> list[float]:
    """The difference of each loss from the other one, as a share of the greater one of the two."""
    pairs = zip(losses, others, strict=True)
    return [_find_difference(one, other) for (_, one), (_, other) in pairs]


def _find_difference(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    # A value that is not finite counts as the greatest difference there is.
    if not (math.isfinite(one) and math.isfinite(other)):
        return OPPOSITE
    # The difference of two great values may be infinite.
    return min(abs(one - other) / max(abs(one), abs(other)), OPPOSITE)
