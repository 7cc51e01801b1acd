"""Names by which `baseline=` refers to a job: its own, its loader's, or its row's in a table."""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, str]
"""The loader of each job by the job's name, `<loader> <dataset> <setting=value>...`."""


def find_baseline(names: Names, baseline: str) -> list[str]:
    """The jobs that the baseline names, of which the first counts; empty if there is none.

    A job is named by its name, by its loader, or by its loader and some of the other words of its
    name.
    """
    if baseline in names:
        return [baseline]
    if baseline in names.values():
        return [name for name, loader in names.items() if loader == baseline]
    # A row of a table has only the words that differ among the rows. Words that fit several jobs of
    # one dataset are ambiguous; of jobs of several datasets each is the baseline of its own.
    loader, *words = baseline.split(" ")
    fitting = [
        name
        for name in names
        if name.split(" ")[0] == loader and set(words) <= {*name.split(" ")[1:]}
    ]
    datasets = [name.split(" ")[1:2] for name in fitting]
    return fitting if all(datasets.count(dataset) == 1 for dataset in datasets) else []


def no_baseline(names: Names, baseline: str) -> str:
    """The message for a baseline that names no job, with the allowed values."""
    allowed = ", ".join(dict.fromkeys([*names.values(), *names])) or "none: no job has finished"
    short = ", or as a row of the table is named" if names else ""
    return f"baseline={baseline}: no such job or loader; allowed: {allowed}{short}"
