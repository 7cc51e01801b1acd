"""The tables of the studies, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastloop.core import stats

AS_IS, PATCHED = "as it is", "patched"
NEAR = 1.05
"""The recommended change counts as the best one if it takes at most this many times as long."""
WORKERS = re.compile(r"num_workers=\d+(, persistent_workers=True)?")


def format_table(studies: Sequence[dict[str, Any]]) -> str:
    """The row of each script, the counts over all scripts, and the errors of the predicted
    times."""
    lines = [
        "| script | verdict | recommended | predicted, tried | fresh runs | best of all | patch |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_row(each))} |" for each in studies]
    right = [each for each in studies if is_verdict_right(each)]
    found = [each for each in studies if is_best_found(each)]
    slower = [each["script"] for each in studies if is_slower(each)]
    patched = [each for each in studies if each["tried"].get("patch")]
    applied = [each for each in patched if not each["patch_error"]]
    lines += [
        "",
        f"Verdict right: {len(right)} of {len(studies)}. Best change found: {len(found)} of "
        f"{len(studies)}. Recommended and slower: {len(slower)} {slower or ''}. Patch applies and "
        f"runs: {len(applied)} of {len(patched)}.",
    ]
    errors = sorted(error for each in studies for error in prediction_errors(each))
    if errors:
        high = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
        lines.append(
            f"Predicted times of {len(errors)} numbers of workers: median error "
            f"{stats.median(errors):.1%}, 90 % quantile {high:.1%}."
        )
    return "\n".join(lines)


def is_verdict_right(study: dict[str, Any]) -> bool:
    """True if the verdict is one of the right ones."""
    return study["verdict"] in study["causes"] if study["causes"] else not study["verdict"]


def is_best_found(study: dict[str, Any]) -> bool:
    """True if the recommendation is as fast as the fastest change, within NEAR."""
    times = _medians(study)
    return _recommended_s(study, times) <= NEAR * min(times.values())


def is_slower(study: dict[str, Any]) -> bool:
    """True if the recommended change makes the script slower than it was."""
    times = _medians(study)
    return _recommended_s(study, times) > NEAR * times[AS_IS]


def prediction_errors(study: dict[str, Any]) -> list[float]:
    """|predicted / realised - 1| of the script's time, for each predicted number of workers."""
    times = _medians(study)
    return [
        abs((1 - gain) * times[AS_IS] / times[change] - 1)
        for change, gain in study["predictions"].items()
        if WORKERS.fullmatch(change) and change in times and gain is not None
    ]


def _recommended_s(study: dict[str, Any], times: dict[str, float]) -> float:
    best = study["tried"].get("best")
    if best is None:
        return times[AS_IS]
    # If a library makes the DataLoader, attach gives advice without a patch.
    return times.get(PATCHED, times.get(best, times[AS_IS]))


def _medians(study: dict[str, Any]) -> dict[str, float]:
    return {name: stats.median(seconds) for name, seconds in study["seconds"].items()}


def _row(study: dict[str, Any]) -> list[str]:
    times, tried = _medians(study), study["tried"]
    best = tried.get("best") or "none"
    change = next((each for each in tried.get("changes", []) if each["change"] == best), None)
    gain = change["gain"] if change else None
    predicted = (
        "" if change is None or change["predicted"] is None else f"{change['predicted']:.0%}"
    )
    shown = f"{gain['value']:.0%} [{gain['low']:.0%}, {gain['high']:.0%}]" if gain else ""
    fastest = min(times, key=times.__getitem__)
    mark = "" if is_verdict_right(study) else " (wrong)"
    patch = study["patch_error"] or ("applies, runs" if tried.get("patch") else "none")
    return [
        study["script"],
        f"{study['verdict'] or 'no DataLoader'}{mark}",
        best,
        f"{predicted}, {shown}" if shown else "",
        f"{1 - _recommended_s(study, times) / times[AS_IS]:.0%}",
        f"{fastest} {1 - times[fastest] / times[AS_IS]:.0%}",
        patch,
    ]
