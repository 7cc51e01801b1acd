"""System errors of a command, as of a full disk: one line, and a status."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from fastloop.cli.arguments import parse_settings
from fastloop.core.outputs_folder import make_sweep_folder
from fastloop.core.types import UsageError
from fastloop.options.tracker.none import NoTracker
from fastloop.processes.command_endings import exit_on_system_error
from fastloop.sweep.measure import _import_tracker

FULL = Path("/dev/full")
needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@needs_full_device
@pytest.mark.parametrize("status", [1, 4])
def test_full_disk_ends_a_command_in_one_line(capsys, monkeypatch, status):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with (
        pytest.raises(SystemExit) as end,
        exit_on_system_error(lambda: "; finished trials are kept", status),
    ):
        FULL.write_text("x")
    assert end.value.code == status
    line = capsys.readouterr().err
    assert line == "[Errno 28] No space left on device; finished trials are kept\n"


@needs_full_device
def test_traceback_is_shown_on_demand(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(OSError, match="No space left"), exit_on_system_error():
        FULL.write_text("x")


def test_reader_that_has_gone_is_no_system_error():
    with pytest.raises(BrokenPipeError), exit_on_system_error():
        raise BrokenPipeError


def test_user_without_a_home_folder_is_no_error(monkeypatch):
    """As in a container that runs as a user of an unknown number."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert parse_settings(["folder=~/x"], {"folder": ""}) == {"folder": "~/x"}


def test_tracker_that_can_not_be_imported_is_reported_later(tmp_path, monkeypatch):
    tried = tmp_path / "tried"
    code = f"import pathlib; pathlib.Path({str(tried)!r}).touch(); raise RuntimeError('no home')"
    (tmp_path / "homeless.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    tracker = NoTracker()
    monkeypatch.setattr(NoTracker, "imports", ("homeless",), raising=False)
    _import_tracker(tracker)
    assert tried.exists()
    assert "homeless" not in sys.modules


def test_text_is_written_as_utf8_in_any_locale(tmp_path):
    code = "import sys, pathlib; from fastloop.core.atomic_files import write_text; "
    code += r"write_text(pathlib.Path(sys.argv[1]), 'm\xfcller\u2026')"
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "text")]
    subprocess.run(command, env=os.environ | ascii_alone, check=True)
    assert (tmp_path / "text").read_bytes() == "müller…".encode()


def test_outputs_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the outputs folder \(FASTLOOP_OUTPUTS\): Not a dir"):
        make_sweep_folder(tmp_path / "file" / "sweep")
