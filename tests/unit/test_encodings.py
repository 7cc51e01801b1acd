"""Text in files is UTF-8, whatever the encoding of the user's locale is."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from commands import QUICK, spawn_fastloop
from known_results import result_of

from fastloop.core.atomic_files import write_text
from fastloop.core.result_io import load, save
from fastloop.trial.unread_batches import memory_mappings

ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
"""Variables by which Python reads and writes text as ASCII, as no locale has UTF-8."""
WRITE = """
from pathlib import Path
from fastloop.core.atomic_files import write_text
write_text(Path("page.html"), "Gr\\u00f6\\u00dfe \\u2026")
"""


def test_text_is_written_as_utf_8_in_another_locale(tmp_path):
    command = [sys.executable, "-c", WRITE]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | ASCII, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "page.html").read_bytes() == "Größe …".encode()


def test_names_that_are_no_utf_8_are_written_as_they_are(tmp_path):
    write_text(tmp_path / "names.txt", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "names.txt").read_bytes() == b"caf\xe9"


def test_a_message_may_have_characters_that_utf_8_lacks(tmp_path):
    message, odd = "BadData: caf\udce9.jpg \ud800", "caf\\udce9.jpg \\ud800"
    result = replace(
        result_of([1.0], samples=10, limit=100.0),
        status_reason=message,
        caveats=[message],
        skipped=[message],
        params={"dataset.root": message, "epochs": 1},
    )
    save(result, tmp_path)
    read = load(tmp_path)
    assert (read.status_reason, read.caveats, read.skipped) == (
        f"BadData: {odd}",
        [f"BadData: {odd}"],
        [f"BadData: {odd}"],
    )
    assert read.params == {"dataset.root": f"BadData: {odd}", "epochs": 1}
    write_text(tmp_path / "traceback.txt", message)
    assert (tmp_path / "traceback.txt").read_text(encoding="utf-8") == f"BadData: {odd}"


@pytest.mark.parametrize("name", [b"caf\xe9.npy", "a\x85b.npy".encode(), b"a\x1cb.npy"])
def test_a_mapped_file_may_have_any_name(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        mapped = memory_mappings()
    assert mapped
    assert all(start < stop for start, stop, _ in mapped)


@pytest.mark.heavy
def test_a_sweep_runs_in_a_locale_without_utf_8(tmp_path):
    folder = tmp_path / "Größe"
    folder.mkdir()
    done = spawn_fastloop("loader=np_memmap", *QUICK, cwd=folder, **ASCII)
    assert done.returncode == 0, done.stderr
    (written,) = folder.glob("outputs/20*/*/0")
    assert load(written).status == "FINISHED"
