"""The page of `fastloop suite site`: the cells that it shows, and the files that it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from options import REPOSITORY
from suite_files import FAST, NOW_MS, SLOW, document_of, example, measured_cell, null_cell

from fastloop.core.types import UsageError
from fastloop.suite.build_suite_file import OTHER_DATA
from fastloop.suite.round_agreement import ComparedRow, find_agreement
from fastloop.suite.round_files import (
    CLAIMS_FILES,
    ROUNDS,
    LoadedRound,
    best_of_machines,
    load_rounds,
)
from fastloop.suite.site import render_site
from fastloop.suite.suite_file import SuiteFile, save_suite, seal
from fastloop.suite.verify_file import find_problems

RESULTS = REPOSITORY / "experiments" / "suite" / "results"
OLD_MS = NOW_MS - 400 * 24 * 3600 * 1000
CAN_NOT_EXIST = (
    "rows are of one length",
    "holds samples of one length",
    "samples only",
    "samples of two tensors only",
    "repeats one draw",
    "none of the latency",
)
"""Ends of the reasons of cells that no adapter could fill: a store holds no such data."""


class Cells(HTMLParser):
    """The rows of the table of all cells, by (workload, label), with their text."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[tuple, dict] = {}
        self.now: dict | None = None

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "tr" and "data-configuration" in values:
            self.now = {"class": values.get("class", ""), "text": "", "links": []}
            self.rows[values["data-workload"], values["data-loader"]] = self.now
        elif tag == "a" and self.now is not None:
            self.now["links"].append(values["href"])

    def handle_data(self, data):
        if self.now is not None:
            self.now["text"] += data

    def handle_endtag(self, tag):
        if tag == "tr":
            self.now = None


def page_of(*rounds: LoadedRound) -> tuple[str, dict]:
    page = render_site([*rounds], NOW_MS, "https://code")
    parser = Cells()
    parser.feed(page)
    return page, parser.rows


def test_the_page_has_every_cell_with_its_figures_or_its_reason():
    document = example()
    page, rows = page_of(LoadedRound(round="2026-11", machine="box", document=document))
    assert list(rows) == [("small_rows", name) for name in ("grain", "spdl", "raw", "ffcv")]
    for cell in document.cells:
        row = rows[cell.workload, cell.label]
        assert row["links"] == [f"https://code/fastloop/options/loader/{cell.loader}.py"]
        assert cell.null_reason in row["text"]
        if cell.figures:
            assert f"{cell.figures.ratio:.2f}" in row["text"]
    assert "1 =" in rows["small_rows", "grain"]["text"]
    assert "<b>needs" not in page


def test_cells_older_than_a_year_are_grey_until_they_are_measured_again():
    old = document_of(
        measured_cell("raw", SLOW, measured_ms=OLD_MS),
        measured_cell("grain", FAST, measured_ms=OLD_MS),
    )
    new = document_of(measured_cell("grain", FAST))
    _, rows = page_of(
        LoadedRound(round="2025-10", machine="box", document=old),
        LoadedRound(round="2026-11", machine="box", document=new),
    )
    assert rows["small_rows", "raw"]["class"] == "old"
    assert rows["small_rows", "grain"]["class"] == ""


def test_cells_of_different_rounds_are_not_ranked_together():
    part = document_of(measured_cell("raw", FAST), measured_cell("ffcv", SLOW))
    page, rows = page_of(
        LoadedRound(round="2026-10", machine="box", document=example()),
        LoadedRound(round="2026-11", machine="box", document=replace(part, complete=False)),
    )
    # In its own round, it takes three times as long as the other one.
    assert "3.00" not in rows["small_rows", "ffcv"]["text"]
    assert "2026-11" in rows["small_rows", "ffcv"]["text"]
    assert "measured in another round" in page
    # The other one keeps the rank that it has in the complete round.
    assert "3.00" in rows["small_rows", "raw"]["text"]
    assert "2026-10" in rows["small_rows", "raw"]["text"]
    assert "round 2026-10 (full)" in " ".join(page.split())


def test_a_loader_that_delivers_other_data_now_keeps_no_rank_of_an_earlier_round():
    part = document_of(measured_cell("raw", FAST), measured_cell("ffcv", SLOW))
    cells = [
        replace(
            cell, unranked_reason=OTHER_DATA, figures=replace(cell.figures, rank=None, ratio=None)
        )
        if cell.label == "raw"
        else cell
        for cell in part.cells
    ]
    page, rows = page_of(
        LoadedRound(round="2026-10", machine="box", document=example()),
        LoadedRound(
            round="2026-11", machine="box", document=replace(part, cells=cells, complete=False)
        ),
    )
    assert OTHER_DATA in page
    assert "3.00" not in rows["small_rows", "raw"]["text"]
    assert "2026-11" in rows["small_rows", "raw"]["text"]


def test_cells_of_the_quick_suite_do_not_replace_those_of_the_full_one():
    quick = replace(document_of(measured_cell("raw", FAST)), scope="quick")
    _, rows = page_of(
        LoadedRound(round="2026-10", machine="box", document=example()),
        LoadedRound(round="2026-11", machine="box", document=quick),
    )
    assert "2026-10 full" in rows["small_rows", "raw"]["text"]


@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        ("full whole, full whole, full part, quick whole", 1),
        ("full part, full part, quick whole, quick part", 1),
        ("quick whole, quick whole, quick part", 1),
    ],
)
def test_a_machine_shows_its_newest_round_of_the_best_kind(kinds, best):
    rounds = []
    for number, kind in enumerate(kinds.split(", ")):
        scope, extent = kind.split()
        document = replace(example(), scope=scope, complete=extent == "whole")
        rounds.append(LoadedRound(round=str(number), machine="box", document=document))
    assert best_of_machines(rounds) == {"box": rounds[best]}


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.99, "9.99"), (9.998, "10.0"), (99.97, "100"), (2582.7, "2,583")]
)
def test_large_ratios_have_fewer_decimals(seconds, text):
    document = document_of(measured_cell("raw", [1.0] * 5), measured_cell("zarr", [seconds] * 5))
    _, rows = page_of(LoadedRound(round="2026-11", machine="box", document=document))
    assert f"\n{text}\n" in rows["small_rows", "zarr"]["text"]


def test_a_later_round_in_which_a_loader_no_longer_runs_says_so():
    part = replace(document_of(null_cell("grain")), complete=False)
    _, rows = page_of(
        LoadedRound(round="2026-10", machine="box", document=example()),
        LoadedRound(round="2026-11", machine="box", document=part),
    )
    assert "a library" in rows["small_rows", "grain"]["text"]


def test_rows_of_several_machines_name_their_machine():
    rounds = [
        LoadedRound(round="2026-11", machine=name, document=example()) for name in ("one", "two")
    ]
    page, _ = page_of(*rounds)
    for name in ("one", "two"):
        assert page.count(f'data-value="{name}"') == len(example().cells)
    assert 'data-value="one"' not in page_of(rounds[0])[0]
    # The table of ratios has no rows of loaders that only the other machine has measured.
    alone = replace(rounds[1], document=document_of(measured_cell("raw", FAST)))
    matrix = page_of(rounds[0], alone)[0].partition('class="matrix" data-machine="two"')[2]
    assert matrix.partition("</table>")[0].count("<tr data-loader=") == 1


def test_two_rounds_agree_by_their_pairs_and_by_ratios_to_the_median_row():
    ranks = [(1, 2), (2, 1), (3, 3)]
    seconds = [(1.0, 2.0), (2.0, 4.0), (3.0, 9.0)]
    rows = [
        ComparedRow(label=str(each), ranks=each, seconds=both)
        for each, both in zip(ranks, seconds, strict=True)
    ]
    found = find_agreement([rows])
    assert (found.rows, found.equal_ranks, found.near_ranks) == (3, 1 / 3, 1)
    assert found.kept_pairs == pytest.approx(2 / 3)
    assert (found.close_ratios, found.median_change) == (2 / 3, 1)
    assert found.large_change == 1
    with pytest.raises(ValueError, match="allowed: at least one"):
        find_agreement([])


def test_the_page_says_how_far_the_newest_two_complete_rounds_agree():
    slower = document_of(
        measured_cell("raw", SLOW),
        measured_cell("grain", [1.5 * each for each in FAST]),
        measured_cell("spdl", FAST),
    )
    rounds = [
        LoadedRound(round=name, machine="box", document=document)
        for name, document in (("a", slower), ("b", example()), ("c", slower))
    ]
    part = replace(rounds[0], round="d", document=replace(slower, complete=False))
    page = " ".join(page_of(*rounds, part)[0].split())
    assert "Between the rounds b and c of box, 67 % of 3 ratios differ by at most 10 %" in page
    assert "Between the rounds" not in page_of(rounds[0], part)[0]


@pytest.mark.heavy
def test_published_rounds_follow_from_their_windows():
    for pattern in (ROUNDS, CLAIMS_FILES):
        rounds = load_rounds(RESULTS, pattern)
        assert rounds
        assert all(find_problems(each.document) == [] for each in rounds)


def test_no_page_is_made_of_an_altered_file(tmp_path):
    (tmp_path / "2026-11").mkdir()
    save_suite(replace(example(), round="2027-01"), tmp_path / "2026-11" / "box.json")
    with pytest.raises(UsageError, match=r"box\.json: round: "):
        load_rounds(tmp_path)


def save_round(folder: Path, name: str, document: SuiteFile, file: str = "box.json") -> None:
    save_suite(seal(replace(document, round=name)), folder / name / file)


def test_rounds_are_in_the_order_of_their_windows_whatever_their_names(tmp_path):
    for name, at_ms, seconds in (("fourth", NOW_MS, SLOW), ("second", OLD_MS, FAST)):
        save_round(tmp_path, name, document_of(measured_cell("raw", seconds, measured_ms=at_ms)))
    assert [each.round for each in load_rounds(tmp_path)] == ["second", "fourth"]


@pytest.mark.parametrize(
    ("source", "copy", "told"),
    [
        ("2026-11/box.json", "2027-01/box.json", "round: 2026-11: it is in the folder of another"),
        ("2026-11/box.json", "2026-11/other.json", r"windows: they are those of .*box\.json; "),
        ("2026-11/box.json", "2026-11/claims/box.json", "scope: full; allowed: <round>/<machine>"),
        ("2026-11/claims/a.json", "2026-11/a.json", "scope: claims; allowed: <round>/claims/"),
    ],
)
def test_a_file_that_was_moved_or_copied_is_refused(tmp_path, source, copy, told):
    save_round(tmp_path, "2026-11", example())
    of_claims = replace(document_of(measured_cell("raw", FAST)), scope="claims")
    save_round(tmp_path, "2026-11", of_claims, "claims/a.json")
    for pattern in (ROUNDS, CLAIMS_FILES):
        assert len(load_rounds(tmp_path, pattern)) == 1
    (tmp_path / copy).parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / source, tmp_path / copy)
    with pytest.raises(UsageError, match=told) as error:
        load_rounds(tmp_path, CLAIMS_FILES if "/claims/" in copy else ROUNDS)
    assert str(error.value).isprintable()


@pytest.mark.heavy
def test_the_newest_complete_round_has_enough_loaders_and_cells():
    newest = [each for each in load_rounds(RESULTS) if each.document.complete][-1]
    filled = [cell for cell in newest.document.cells if cell.figures]
    assert len({cell.loader for cell in filled}) >= 16
    missing = [
        cell.null_reason
        for cell in newest.document.cells
        if cell.null_reason and not any(part in cell.null_reason for part in CAN_NOT_EXIST)
    ]
    assert len(filled) >= 0.9 * (len(filled) + len(missing))
