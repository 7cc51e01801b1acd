"""The suite's file: its schema, its figures, and what `fastloop suite verify` refuses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from options import compose_job
from suite_files import FAST, SLOW, document_of, example, measured_cell

from fastloop.cli import suite
from fastloop.config.catalogue import options_of
from fastloop.core import result_io
from fastloop.core.types import UsageError
from fastloop.suite.claims import CLAIMS
from fastloop.suite.suite_file import (
    FILE,
    SCHEMA_FILE,
    check_replaceable,
    load_suite,
    save_suite,
    schema_text,
)
from fastloop.suite.verify_file import find_problems
from fastloop.suite.workloads import QUICK_LOADERS, READ_SAMPLES, TUNED, WORKLOADS, rows_of


def leaves(node, path=()):
    if isinstance(node, dict | list) and node:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, each in items:
            yield from leaves(each, (*path, key))
    elif not isinstance(node, dict | list):
        yield path, node


def altered(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1


def change(plain: dict, path: tuple, value) -> dict:
    changed = copy.deepcopy(plain)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


def complaints(plain: dict, folder) -> str:
    path = folder / "file.json"
    path.write_text(json.dumps(plain))
    try:
        return "\n".join(find_problems(load_suite(path)))
    except UsageError as error:
        return str(error)


def test_figures_follow_from_the_windows():
    figures = {cell.label: cell.figures for cell in example().cells}
    assert figures["ffcv"] is None
    assert figures["grain"].seconds == pytest.approx(1.0)
    assert figures["grain"].samples_per_s == pytest.approx(500)
    assert figures["grain"].limit_share == pytest.approx(500 / 9000)
    assert (figures["grain"].rank, figures["grain"].tied_with) == (1, ["spdl"])
    assert (figures["spdl"].rank, figures["raw"].rank) == (1, 3)
    assert figures["raw"].ratio == pytest.approx(3, rel=0.02)
    low, high = figures["raw"].ratio_interval
    assert low <= figures["raw"].ratio <= high


def test_a_cell_without_rank_takes_no_part_in_ranks():
    fastest = measured_cell("raw", [0.1] * 5, unranked_reason="it delivers other data")
    document = document_of(fastest, measured_cell("grain", FAST), measured_cell("spdl", SLOW))
    figures = {cell.label: cell.figures for cell in document.cells}
    assert (figures["raw"].rank, figures["raw"].ratio) == (None, None)
    assert (figures["grain"].rank, figures["grain"].ratio) == (1, 1)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_windows_give_no_ranks_and_say_why(count):
    cells = measured_cell("raw", SLOW[:count]), measured_cell("grain", FAST[:count])
    document = document_of(*cells)
    assert document.workloads[0].undetermined
    assert all(cell.figures.rank is None for cell in document.cells)
    assert find_problems(document) == []


def test_written_files_are_read_again_as_they_were(tmp_path):
    save_suite(example(), tmp_path / "a.json")
    assert load_suite(tmp_path / "a.json") == example()
    assert find_problems(load_suite(tmp_path / "a.json")) == []


def test_each_altered_field_is_refused_by_its_name(tmp_path):
    plain = FILE.dump_python(example(), mode="json")
    assert complaints(plain, tmp_path) == ""
    for path, value in leaves(plain):
        told = complaints(change(plain, path, altered(value)), tmp_path)
        # In a cell the field's name follows the cell's number; a seal is named by what it seals.
        in_cell = path[0] == "cells"
        name = path[2] if in_cell else path[0]
        assert str(path[-1] if name == "seals" else name) in told, (path, told)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(0.001, 100), min_size=1, max_size=7), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_file_passes_until_any_field_is_altered(tmp_path_factory, rows, data):
    cells = [measured_cell(f"loader{number}", each) for number, each in enumerate(rows)]
    plain = FILE.dump_python(document_of(*cells), mode="json")
    folder = tmp_path_factory.getbasetemp()
    assert complaints(plain, folder) == ""
    path, value = data.draw(st.sampled_from([*leaves(plain)]))
    assert complaints(change(plain, path, altered(value)), folder)


@pytest.mark.parametrize("part", ["cells", "workloads"])
def test_a_removed_part_is_missed(tmp_path, part):
    plain = FILE.dump_python(example(), mode="json")
    plain[part] = plain[part][1:]
    assert part in complaints(plain, tmp_path)


def test_a_removed_or_added_window_is_told_by_its_number(tmp_path):
    plain = FILE.dump_python(example(), mode="json")
    windows = plain["cells"][0]["windows"]
    for key, others in (("2", {}), ("7", {"7": windows["2"]})):
        kept = {number: each for number, each in windows.items() if number != key} | others
        told = complaints(change(plain, ("cells", 0, "windows"), kept), tmp_path)
        assert f"cells[small_rows raw].windows.{key}: altered, added or removed" in told


def test_a_password_that_is_a_word_of_the_file_does_not_alter_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "fastloop")
    save_suite(example(), tmp_path / "a.json")
    assert find_problems(load_suite(tmp_path / "a.json")) == []


@pytest.mark.parametrize(
    ("there", "scope", "is_whole", "refused"),
    [
        ("full", "quick", True, True),
        ("full", "full", False, True),
        ("full", "full", True, False),
        ("quick", "full", False, False),
    ],
)
def test_a_file_is_not_replaced_by_one_that_has_less(tmp_path, there, scope, is_whole, refused):
    path = tmp_path / "a.json"
    check_replaceable(path, scope, is_whole=is_whole)
    save_suite(replace(example(), scope=there), path)
    if refused:
        with pytest.raises(UsageError, match="allowed: with another round= or results="):
            check_replaceable(path, scope, is_whole=is_whole)
    else:
        check_replaceable(path, scope, is_whole=is_whole)


@pytest.mark.parametrize(
    "setting",
    [
        "trials=auto",
        "trials=0",
        "trials=3,5",
        "seconds=0",
        "seconds=nan",
        "seconds=1h",
        "round=..",
        "machine=my box",
    ],
)
def test_wrong_settings_end_the_suite_before_it_measures(monkeypatch, tmp_path, setting):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fastloop suite", "quick", setting])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    assert str(ended.value.code).startswith(f"{setting}: allowed: ")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("full workloads=", "workloads=: it is empty; allowed: "),
        ("full results=", "results=: it is empty; allowed: "),
        ("full results=/proc/no", "results=/proc/no: "),
        ("quick results=file", "results=file: file/"),
        ("full machine=" + "x" * 300, "machine=x"),
        ("claims loaders=raw", "loaders=raw: no such setting; allowed: "),
        ("list all", "suite list all: allowed: fastloop suite list"),
        ("site results=nowhere", "results=nowhere: no <round>/<machine>.json in it; allowed: "),
        ("site page=folder", "page=folder: Is a directory; allowed: "),
        ("site page=folder/claims.html", "page=folder/claims.html: that is the page of claims; "),
    ],
)
def test_wrong_arguments_are_one_line_and_leave_nothing(monkeypatch, tmp_path, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("sys.argv", ["fastloop suite", *arguments.split(" ")])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    line = str(ended.value.code)
    assert line.startswith(told)
    assert "allowed: " in line
    assert "\n" not in line
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "folder"}


@pytest.mark.parametrize(
    ("names", "status", "told"),
    [
        ("whole.json", 0, []),
        ("whole.json altered.json", 1, ["altered.json: commit: "]),
        ("nowhere.json", 2, ["nowhere.json: No such file or directory; allowed: "]),
        ("folder whole.json", 2, ["folder: Is a directory; allowed: "]),
        ("", 2, ["suite verify: allowed: one or more files"]),
        ("nowhere.json altered.json", 1, ["nowhere.json: No such ", "altered.json: "]),
    ],
)
def test_an_altered_file_has_another_status_than_one_that_is_not_read(
    monkeypatch, tmp_path, capsys, names, status, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    save_suite(example(), tmp_path / "whole.json")
    save_suite(replace(example(), commit="another"), tmp_path / "altered.json")
    monkeypatch.setattr("sys.argv", ["fastloop suite", "verify", *names.split()])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    assert ended.value.code == status
    lines = capsys.readouterr().err.splitlines()
    for part in told:
        assert any(line.startswith(part) for line in lines), lines
    assert bool(lines) is bool(told)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1}', "\x00"])
def test_other_files_are_refused_in_one_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError) as error:
        load_suite(tmp_path / "a.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 1, "a\\n\\u001b[2J": 1}'], ids=["nested", "terminal"]
)
def test_a_strangers_file_is_refused_in_one_printable_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError) as error:
        load_suite(tmp_path / "a.json")
    assert str(error.value).isprintable()


def test_words_of_a_strangers_file_are_printed_in_one_printable_line(tmp_path):
    plain = FILE.dump_python(example(), mode="json")
    told = complaints(change(plain, ("cells", 0, "label"), "a\nb.json: fine\033[2J"), tmp_path)
    assert "a b.json: fine?[2J" in told
    assert all(line.isprintable() for line in told.split("\n"))


def test_the_schema_files_are_those_of_the_classes():
    assert SCHEMA_FILE.read_text() == schema_text(), "`make docs` writes it"
    assert result_io.SCHEMA_FILE.read_text() == result_io.schema_text(), "`make docs` writes it"


@pytest.mark.heavy
def test_loaders_that_read_samples_are_those_that_declare_it():
    loaders = {name: compose_job(f"loader={name}").loader for name in options_of("loader")}
    declaring = {
        name
        for name, loader in loaders.items()
        if getattr(loader, "reads_samples", False) and loader.store is not None
    }
    assert declaring == set(READ_SAMPLES)


def test_workloads_name_loaders_that_exist_and_rows_of_their_own():
    loaders = options_of("loader")
    assert len(WORKLOADS) == len({each.name for each in WORKLOADS}) == 7
    assert set(QUICK_LOADERS) <= set(loaders)
    assert set(TUNED) <= {each.name for each in WORKLOADS}
    for workload in WORKLOADS:
        labels = [row.label for row in rows_of(workload, loaders)]
        assert len(labels) == len(set(labels))


def test_the_list_names_workloads_and_claims_as_the_command_line_takes_them(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fastloop suite", "list"])
    suite.main()
    starts = {line.partition(":")[0] for line in capsys.readouterr().out.splitlines()}
    assert {each.name for each in (*WORKLOADS, *CLAIMS)} <= starts


def test_a_workload_without_a_figure_tells_the_reason_of_each_row(tmp_path, monkeypatch, capsys):
    words = ["quick", "workloads=small_rows", "loaders=index_loop", f"results={tmp_path}"]
    monkeypatch.setattr("sys.argv", ["fastloop suite", *words, "round=a", "machine=b"])
    suite.main()
    (cell,) = load_suite(tmp_path / "a" / "b.json").cells
    assert cell.null_reason
    assert f"small_rows, index_loop: {cell.null_reason}" in capsys.readouterr().out.splitlines()
