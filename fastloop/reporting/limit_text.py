"""Describe in words the limits that tables, verdicts and caveats refer to.

A limit is the rate at which the machine does the same work without a loader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fastloop.core.limit import LimitOrigin
from fastloop.core.number_text import show_fine_percent
from fastloop.reporting.summary import Comparison

MACHINE_ABILITY = "what the machine can do"
ABILITIES = {
    "rows": "gather in memory",
    "converted rows": "gather and convert in memory",
    "decoded images": "decode",
    "cropped images": "decode, crop and resize",
}
"""Kind of limit -> the ability of cores, after `can`."""
OTHER_WORK = {
    "copies": "what can be copied to the device",
    "steps": "what the steps alone can do",
}


def describe_work(origin: LimitOrigin | None) -> str:
    """The work of a limit, as in `61 % of what 2 cores can decode`; for results of versions that
    did not record it, `what the machine can do`."""
    if origin is None:
        return MACHINE_ABILITY
    if origin.kind in OTHER_WORK:
        return OTHER_WORK[origin.kind]
    cores = "1 core" if origin.cores == 1 else f"{origin.cores} cores"
    return f"what {cores} can {ABILITIES[origin.kind]}"


def describe_origin(origin: LimitOrigin) -> str:
    """Kind and engine of a limit, and its share of a sequential copy, in a few words."""
    engine = f" by {origin.engine}" if origin.engine else ""
    share = origin.memcpy_fraction
    memcpy = "" if share is None else f", {show_fine_percent(share)} of memcpy"
    return f"{origin.kind}{engine}{memcpy}"


def limit_legend(comparisons: Sequence[Comparison]) -> str:
    """Explanation of the column `limit`: the work that it refers to. If the rows' limits are of
    different work, each work is followed by its rows."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for comparison in comparisons:
        labels: dict[str, list[str]] = defaultdict(list)
        for row in comparison.rows:
            if row.limit_fraction is not None:
                labels[describe_work(row.limit_origin)].append(row.label)
        for work, names in labels.items():
            is_all = len(labels) == 1
            several = "; " if any("," in name for name in names) else ", "
            jobs[work].append(comparison.benchmark if is_all else several.join(names))
    if len(jobs) < 2:
        return f"limit: share of {next(iter(jobs), MACHINE_ABILITY)}"
    return "limit: share of " + ", of ".join(
        f"{work} ({'; '.join(names)})" for work, names in jobs.items()
    )
