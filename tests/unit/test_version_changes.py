"""Two versions in rounds: what is told, how often wrongly, and in which words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_results import result_of

from experiments.two_versions.run import simulate
from fastloop.core.auto_trials import LOOKS
from fastloop.core.types import FailureKind
from fastloop.reporting.check_verdict import CheckStatus
from fastloop.reporting.version_changes import (
    RoundTimes,
    find_version_changes,
    judge_change,
    needs_no_round,
    round_means,
)
from fastloop.reporting.version_outcome import VersionOutcome
from fastloop.reporting.version_text import (
    answer_versions,
    describe_versions,
    versions_markdown,
)

KEY = ("raw digits", "traversal")


def rounds_of(factor: float, noise: float = 0.001, count: int = 8):
    rng = np.random.default_rng(0)
    base, new = np.exp(noise * rng.standard_normal((2, count)))
    return {KEY: RoundTimes(base=[*base], new=[*(factor * new)])}


def outcome_of(factor: float, fail_above: float = 2.0, **changes) -> VersionOutcome:
    job = replace(
        result_of([1.0], 10, 1.0), name=KEY[0], status="FINISHED", num_samples=10, content="a"
    )
    found = VersionOutcome(
        base_label="HEAD~1",
        new_label="the working folder",
        base={job.name: job},
        new={job.name: job},
        changes=find_version_changes(rounds_of(factor), 1),
        fail_above=fail_above,
        effort="8 rounds",
    )
    return replace(found, **changes)


@pytest.mark.heavy
def test_at_most_five_percent_of_equal_versions_are_told_apart():
    found = simulate(factor=1.0, pairs=4, correlation=0.0, campaigns=60)
    assert found["different"] <= 3
    assert found["slower"] == 0


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("pairs", [1, 4, 8])
@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_at_most_five_percent_of_two_hundred_equal_versions_are_told_apart(pairs, correlation):
    assert simulate(1.0, pairs, correlation, campaigns=200)["different"] <= 10


@pytest.mark.heavy
def test_a_factor_of_one_point_zero_five_is_told_at_five_percent_noise():
    found = simulate(1.05, pairs=8, correlation=0.0, campaigns=200)
    assert found["slower"] >= 190


def test_interval_that_tells_nothing_has_no_numbers():
    few = find_version_changes(rounds_of(1.0, noise=4.0, count=4), 1)
    found = outcome_of(1.0, changes=few)
    for text in (answer_versions(found), describe_versions(found), versions_markdown(found)):
        assert "wider than a factor of 10" in text


def test_nothing_is_told_between_looks_nor_before_the_first():
    for count in range(2, LOOKS[-1] + 1):
        assert needs_no_round(rounds_of(2, count=count), count, 1, 2.0) == (count in LOOKS)
    (few,) = find_version_changes(rounds_of(2, count=3), 1)
    assert (judge_change(few, 2.0), few.ratio) == ("", None)


def test_a_difference_below_what_is_allowed_is_no_slower():
    (found,) = find_version_changes(rounds_of(1.2), 1)
    judgements = [judge_change(found, allowed) for allowed in (2, 10, 30)]
    assert judgements == ["slower", "slower", "no slower"]


def test_a_trials_share_of_a_round_is_a_geometric_mean():
    assert round_means([1.0, 4.0, 3.0, 3.0], 2) == pytest.approx([2.0, 3.0])


def test_statuses_and_their_order():
    assert outcome_of(1.0).status == CheckStatus.NO_SLOWER
    assert outcome_of(0.5).status == CheckStatus.NO_SLOWER
    assert outcome_of(1.5).status == CheckStatus.SLOWER
    assert outcome_of(1.5, changes=()).status == CheckStatus.NOT_JUDGED
    known = outcome_of(1.5)
    job = known.base[KEY[0]]
    failed = replace(job, status="FAILED", status_reason="KeyError: 3")
    assert outcome_of(1.0, new={job.name: failed}, changes=()).status == CheckStatus.SLOWER
    assert outcome_of(1.0, base={job.name: failed}, changes=()).status == CheckStatus.NOT_JUDGED
    other = replace(job, content="b", fingerprint="b", decoder_equivalence_id="")
    found = outcome_of(1.5, new={job.name: other})
    assert found.status == CheckStatus.OTHER_DATA
    assert "different samples" in answer_versions(found)


def test_reason_why_a_version_is_not_judged_is_told_once():
    job = outcome_of(1.0).base[KEY[0]]
    reason = "this job needs a_library: `fastloop env` installs it"
    skipped = replace(
        job,
        status="FAILED",
        failure_kind=FailureKind.UNSUPPORTED,
        status_reason=f"unsupported: {reason}",
    )
    both = {job.name: skipped}
    text = describe_versions(outcome_of(1.0, base=both, new=both, changes=()))
    assert text.count(reason) == 1
    assert f"skipped: {reason} in both" in text


def test_markdown_begins_with_its_marker_and_the_answer_and_quotes_no_html():
    text = versions_markdown(outcome_of(1.5, new_label="<b>bold"))
    assert text.startswith("<!-- fastloop check -->\n\n### fastloop check: slower\n\n&lt;b>bold is")
    assert "<b>" not in text
    assert "| raw digits | traversal |" in text
