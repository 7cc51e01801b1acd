"""Find the jobs that `baseline=` means, and say which names it takes."""

from __future__ import annotations

from collections.abc import Mapping

from fastloop.reporting.short_names import split_name

Names = Mapping[str, str]
"""The loader of each job by the job's name, `<loader> <dataset> <setting=value>...`."""


def find_baseline(names: Names, baseline: str) -> list[str]:
    """Find the jobs that the text of `baseline=` means; the first one counts. Empty if there is
    none.

    The text may be a job's name, its loader, or its loader and some other words of its name.
    """
    if baseline in names:
        return [baseline]
    if baseline in names.values():
        return [name for name, loader in names.items() if loader == baseline]
    # A row of a table has only the words that differ among the rows. Words that fit several jobs of
    # one dataset are ambiguous. If they fit one job of each dataset, it is the dataset's baseline.
    loader, *words = split_name(baseline)
    fitting = [
        name
        for name in names
        if split_name(name)[0] == loader and set(words) <= {*split_name(name)[1:]}
    ]
    datasets = [split_name(name)[1:2] for name in fitting]
    return fitting if all(datasets.count(dataset) == 1 for dataset in datasets) else []


def no_baseline_message(names: Names, baseline: str) -> str:
    """The message for a baseline that names no job, with the allowed values."""
    allowed = ", ".join(dict.fromkeys([*names.values(), *names])) or "none: no job has finished"
    short = ", or the name of a row of the table" if names else ""
    return f"baseline={baseline}: no such job or loader; allowed: {allowed}{short}"
