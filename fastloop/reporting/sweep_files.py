"""Describe the files of a sweep: the stores that its jobs read, its folder and its profiles.

A store is a dataset that was written once, in a format that reads fast. Reports show tables of
stores and profiles; `fastloop run` prints both as lines at its end.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from fastloop.core.number_text import significant
from fastloop.core.result import Result
from fastloop.reporting.report_tables import Table

STORES_LEGEND = (
    "A store holds all samples of its dataset, even if the order reads a subset. "
    "The seconds are those of writing it, which a later sweep does not repeat."
)
TRACE, OPERATIONS = "profile-<benchmark>.json.gz", "profile-<benchmark>.txt"
"""Names of the files of a profile, in a job's folder."""


def stores_table(results: Sequence[Result]) -> Table | None:
    """A table of the stores that the jobs read; None if they read no store.

    It has the size in MiB, the seconds of writing and the number of samples of each store.
    """
    head = ("store of", "dataset", "MiB", "seconds", "samples")
    rows = tuple((readers, *store) for store, readers in _readers_by_store(results).items())
    return Table(heading="Stores", head=head, rows=rows, legend=STORES_LEGEND) if rows else None


def profiles_table(results: Sequence[Result]) -> Table | None:
    """A table of the files that profile=true writes; None if no job was profiled."""
    if not any(result.params.get("profile") for result in results):
        return None
    rows = (
        (TRACE, "trace of a few steps, for ui.perfetto.dev"),
        (OPERATIONS, "costliest operations"),
    )
    head = ("in each job's folder", "content")
    return Table(heading="Profiles", head=head, rows=rows, numeric=False)


def file_lines(results: Sequence[Result], folder: str, width: int) -> str:
    """Lines about stores, the sweep's folder and profiles, for the end of a command's output.

    folder: path of the sweep's folder. width: maximum length of the lines about stores, in
    characters.
    """
    stores = [
        f"{readers} {store.mib} MiB, {store.seconds} s to write"
        for store, readers in _readers_by_store(results).items()
    ]
    lines = [f"files:  {folder}"]
    if stores:
        text = f"stores: {'; '.join(stores)} (of all samples)"
        lines = [*textwrap.wrap(text, width, subsequent_indent=" " * 8), *lines]
    if profiles_table(results):
        lines.append(f"        profiles are in {folder}/*/: {TRACE} and {OPERATIONS}")
    return "\n".join(lines)


class _Store(NamedTuple):
    """The figures of a store, as text."""

    dataset: str
    """Name of the dataset."""
    mib: str
    """Size of the store's files in MiB."""
    seconds: str
    """Time that writing the store took."""
    samples: str
    """Number of samples."""


def _readers_by_store(results: Sequence[Result]) -> dict[_Store, str]:
    """Store -> names of the loaders that read it, separated by commas."""
    # Results do not name the store, so results with equal figures are taken for readers of one
    # store.
    loaders: dict[_Store, dict[str, None]] = {}
    for result in results:
        if result.disk_mib:
            store = _Store(
                dataset=result.dataset,
                mib=significant(result.disk_mib),
                seconds=significant(result.prepare_s),
                samples=f"{result.num_samples:,}",
            )
            loaders.setdefault(store, {})[result.loader] = None
    return {store: ", ".join(names) for store, names in loaders.items()}
