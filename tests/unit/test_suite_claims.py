"""Claims of loaders' pages: their declarations, their outcomes, and their page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from suite_files import FAST, SLOW, claimed_file, example

from fastloop.cli import suite
from fastloop.config.catalogue import options_of, options_with_store
from fastloop.suite.build_suite_file import OTHER_DATA
from fastloop.suite.claims import CLAIMS, describe_judgement, judge, render_claims
from fastloop.suite.round_files import LoadedRound
from fastloop.suite.suite_file import save_suite, seal
from fastloop.suite.workloads import rows_of


@pytest.mark.parametrize(
    ("factors", "outcome"),
    [
        ([1.5, 1.51, 1.49, 1.5, 1.52], "holds"),
        ([0.5, 0.51, 0.49, 0.5, 0.52], "does not hold"),
        ([0.9, 1.2, 0.8, 1.1, 1.0], "undecided"),
        ([9.0, 9.0], "undecided"),
    ],
)
def test_a_claim_is_decided_by_the_whole_interval(factors, outcome):
    claim = CLAIMS[0]
    fast = [1.0, 1.01, 0.99, 1.0, 1.02][: len(factors)]
    slow = [claim.least * each * factor for each, factor in zip(fast, factors, strict=True)]
    judged = judge(claim, claimed_file(claim, slow, fast))
    assert judged.outcome == outcome
    assert judged.factor.estimate == pytest.approx(claim.least * factors[0], rel=0.2)
    line = describe_judgement(judged)
    assert line.startswith(f"{claim.name}: {outcome}: {judged.factor.estimate:.2f} ")
    assert f" {claim.least:g} " in line


def test_claims_are_pairs_with_source_and_date_and_a_row_of_the_page_each():
    assert len(CLAIMS) >= 12
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.source.startswith("https://") and claim.date for claim in CLAIMS)
    assert all(claim.slow.label != claim.fast.label for claim in CLAIMS)
    loaders = options_of("loader")
    assert all(len(rows_of(claim.workload, loaders)) == 2 for claim in CLAIMS)
    document = claimed_file(CLAIMS[0], SLOW, FAST)
    page = render_claims([LoadedRound(round="2026-11", machine="box", document=document)])
    assert all(f'data-claim="{claim.name}"' in page for claim in CLAIMS)
    assert page.count("not measured") >= len(CLAIMS) - 1
    absent = describe_judgement(judge(CLAIMS[1], document))
    assert absent == f"{CLAIMS[1].name}: not measured: this file does not have it"


def test_a_claim_of_unequal_numbers_of_windows_says_why_it_is_undecided():
    judged = judge(CLAIMS[0], claimed_file(CLAIMS[0], SLOW, FAST[:4]))
    assert (judged.outcome, judged.factor) == ("undecided", None)
    assert describe_judgement(judged).endswith("its two rows have different numbers of windows")


def test_a_claim_with_a_row_that_was_measured_and_has_no_rank_says_so():
    document = claimed_file(CLAIMS[0], SLOW, FAST)
    slow, fast = document.cells
    document = replace(document, cells=[slow, replace(fast, unranked_reason=OTHER_DATA)])
    line = describe_judgement(judge(CLAIMS[0], document))
    assert line == f"{CLAIMS[0].name}: measured, not ranked: {OTHER_DATA}"
    page = render_claims([LoadedRound(round="2026-11", machine="box", document=document)])
    assert "not measured" not in row_of(page, CLAIMS[0].name)
    assert OTHER_DATA in row_of(page, CLAIMS[0].name)


def test_both_rows_of_a_claim_about_image_files_decode_them():
    with_store = options_with_store()
    for claim in CLAIMS:
        # A job of random crops is left without a store by itself.
        if "dataset=photos" in claim.common and "transform=random_resized_crop" not in claim.common:
            for row in (claim.slow, claim.fast):
                assert row.loader not in with_store or "loader.store=null" in row.overrides


def test_the_page_of_claims_names_a_page_of_loaders_only_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, page, links in (("claims", "", 0), ("", "all.html", 1)):
        document = seal(replace(example(), scope="claims" if place else "full"))
        save_suite(document, tmp_path / "results" / "2026-11" / place / "box.json")
        given = [f"page={tmp_path / page}"] if page else []
        monkeypatch.setattr("sys.argv", ["fastloop suite", "site", *given])
        suite.main()
        written = (tmp_path if page else tmp_path / "results") / "claims.html"
        assert written.read_text().count(f'href="{page or "index.html"}"') == links


def test_each_claim_is_that_of_the_newest_round_that_has_it():
    files = [claimed_file(CLAIMS[0], SLOW, FAST), claimed_file(CLAIMS[1], SLOW, FAST)]
    again = claimed_file(CLAIMS[0], FAST, SLOW)
    names = ("2026-10", "2026-11", "2026-12")
    rounds = [
        LoadedRound(round=name, machine="box", document=document)
        for name, document in zip(names, (*files, again), strict=True)
    ]
    page = render_claims(rounds)
    assert "0.33" in row_of(page, CLAIMS[0].name)
    assert "2026-12" in row_of(page, CLAIMS[0].name)
    assert "2026-11" in row_of(page, CLAIMS[1].name)
    assert "holds" in row_of(page, CLAIMS[1].name)
    assert "this file does not have it" in row_of(page, CLAIMS[2].name)


def row_of(page: str, claim: str) -> str:
    """The row of the page that has this claim."""
    return page.partition(f'data-claim="{claim}"')[2].partition("</tr>")[0]


@pytest.mark.parametrize(
    ("count", "reason"),
    [(5, "the interval of 5 windows includes 15"), (2, "2 windows have no interval")],
)
def test_an_undecided_claim_says_why(count, reason):
    claim = CLAIMS[0]
    slow = [14.0, 18.0, 12.0, 16.0, 15.0][:count]
    document = claimed_file(claim, slow, [1.0] * count)
    judged = judge(claim, document)
    assert (judged.outcome, judged.reason) == ("undecided", reason)
    assert f"; {reason}, claimed: 15 or more" in describe_judgement(judged)
    page = render_claims([LoadedRound(round="2026-11", machine="box", document=document)])
    assert reason in row_of(page, claim.name)
