"""The usual script of an image classifier, whose import of DataLoader alone is changed."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
from image_samples import jpeg, photograph, write_files
from native_jpeg import needs_jpeg

pytestmark = [needs_jpeg, pytest.mark.heavy]
SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "train_classifier.py"
IMPORT = "from torch.utils.data import DataLoader\n"


def run(code: str, root: Path, capsys, monkeypatch) -> list[str]:
    """The lines that the script prints."""
    monkeypatch.setattr(sys, "argv", ["train.py", str(root), "-j", "0", "--epochs", "1"])
    exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out.splitlines()


def test_script_trains_and_validates(tmp_path, capsys, monkeypatch, caplog):
    photos = [jpeg(photograph().crop((9 * n, 5, 300 + 20 * n, 400 - 9 * n))) for n in range(8)]
    names = [f"{'train' if n < 5 else 'val'}/{'cat' if n % 2 else 'dog'}/{n}.jpg" for n in range(8)]
    root = write_files(tmp_path, dict(zip(names, photos, strict=True)))
    script = SCRIPT.read_text()
    assert IMPORT in script
    theirs = run(script, root, capsys, monkeypatch)
    with caplog.at_level(logging.INFO, "fastloop"):
        changed = script.replace(IMPORT, "from fastloop import FastLoader as DataLoader\n")
        ours = run(changed, root, capsys, monkeypatch)
    natively = [record.message for record in caplog.records if "is read natively" in record.message]
    assert [re.search(r"of (\d+) images", message).group(1) for message in natively] == ["5", "3"]
    assert [line.split("\t")[0] for line in ours[1:3]] == [f"Epoch: [0][{n}/2]" for n in (1, 2)]
    assert len(ours) == len(theirs) == 4
    before = [float(lines[0].split("Loss ")[1]) for lines in (ours, theirs)]
    assert before[0] == pytest.approx(before[1], rel=1e-3)  # of the same pixels within 1 of 255
