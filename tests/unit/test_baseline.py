"""baseline= takes the names that a table shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_results import result_of

from fastloop.reporting.baseline import find_baseline
from fastloop.reporting.summary import check_baseline, summarize

NAMES = {
    "raw digits batch_size=64 num_workers=0": "raw",
    "raw digits batch_size=128 num_workers=0": "raw",
    "raw digits batch_size=128 num_workers=2": "raw",
    "np_memmap digits batch_size=64 num_workers=0": "np_memmap",
}
FIRST, SECOND, THIRD, FOURTH = NAMES


@pytest.mark.parametrize(
    ("baseline", "jobs"),
    [
        (SECOND, [SECOND]),
        ("raw", [FIRST, SECOND, THIRD]),
        ("raw batch_size=64", [FIRST]),
        ("raw batch_size=64 num_workers=0", [FIRST]),
        ("raw num_workers=2", [THIRD]),
        ("raw batch_size=128", []),
        ("raw num_workers=0", []),
        ("np_memmap num_workers=0", [FOURTH]),
        ("batch_size=64", []),
        ("raw nothing=1", []),
        ("", []),
    ],
)
def test_baseline_is_a_job_a_loader_or_the_name_of_a_row(baseline, jobs):
    assert find_baseline(NAMES, baseline) == jobs


def test_every_label_of_a_table_names_its_row():
    known = replace(
        result_of([1.0, 1.1], samples=100, limit=200), tags={"device": "cpu"}, status="FINISHED"
    )
    results = [replace(known, name=name, loader=loader) for name, loader in NAMES.items()]
    (group,) = summarize(results)
    labels = {row.label: row.result.name for row in group.comparisons[0].rows}
    assert len(labels) == 4
    for label, name in labels.items():
        check_baseline(results, label)
        (group,) = summarize(results, label)
        assert group.comparisons[0].baseline == label, name
    with pytest.raises(ValueError, match=r"^baseline=raw batch_size=128: no such job or loader; a"):
        check_baseline(results, "raw batch_size=128")
