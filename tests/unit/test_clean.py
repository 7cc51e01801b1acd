"""Sizes of what `fastloop clean` lists, while other commands write and remove files."""

from __future__ import annotations

import pytest

from fastloop.cli import clean
from fastloop.cli.clean import MIB, Item, describe_item


def test_what_was_removed_meanwhile_has_no_size(tmp_path):
    gone = tmp_path / "gone"
    assert describe_item(gone, now_s=5.0) == Item(path=gone, mib=0.0, age_s=0.0)


def test_what_was_changed_before_the_clock_was_set_back_is_new(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert describe_item(file, now_s=0.0).age_s == 0.0


def test_a_folder_has_the_size_of_its_files_and_not_of_linked_ones(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    for each in (folder / "inner", other):
        each.mkdir(parents=True)
        (each / "file").write_bytes(bytes(MIB))
    (folder / "link").symlink_to(other)
    assert 1 <= describe_item(folder, now_s=0.0).mib < 1.01
    assert describe_item(folder / "link", now_s=0.0).mib < 0.01


@pytest.mark.parametrize("is_report_first", [True, False])
def test_size_of_a_report_in_a_removed_sweep_is_told_once(outputs, capsys, is_report_first):
    sweep = outputs / "sweep"
    sweep.mkdir(parents=True)
    (sweep / "report.html").write_bytes(bytes(3 * MIB))
    (sweep / "other").write_bytes(bytes(2 * MIB))
    items = [describe_item(path, 0.0) for path in (sweep / "report.html", sweep)]
    clean._remove(items if is_report_first else items[::-1])
    assert capsys.readouterr().out == "\nremoved: 5.0 MiB\n"
    assert not sweep.exists()
