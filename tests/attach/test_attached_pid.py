"""A process that already runs, of which fastloop attach --pid samples the stack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_fastloop

WAITING = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.tensor(index)

for number, batch in enumerate(DataLoader(Samples(), 4)):
    if number == 0:
        print("ready", flush=True)
"""
has_py_spy = shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()
needs_py_spy = pytest.mark.skipif(not has_py_spy, reason="needs py-spy")


def attach(*arguments, cwd):
    process = run_fastloop(*arguments, cwd=cwd, command="attach")
    assert process.stderr.count("\n") == (1 if process.returncode else 0)
    return process


@needs_py_spy
@pytest.mark.heavy
def test_share_in_next_is_told_with_its_line(tmp_path):
    (tmp_path / "train.py").write_text(WAITING)
    command = [sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        assert script.stdout.readline() == "ready\n"
        process = attach("--pid", str(script.pid), "--seconds=2", cwd=tmp_path)
        script.kill()
    if "ptrace" in process.stderr:
        pytest.skip("the system does not allow ptrace")
    assert process.returncode == 0, process.stderr
    found = re.search(r"in (\d+) % of (\d+) samples", process.stdout)
    assert found
    assert int(found[1]) > 50
    assert int(found[2]) > 10
    assert "% at train.py:13. Nothing is predicted" in process.stdout


@needs_py_spy
def test_process_that_can_not_be_sampled_is_refused_with_the_reason(tmp_path):
    with subprocess.Popen(["sleep", "100"]) as other:
        process = attach(f"--pid={other.pid}", "--seconds=1", cwd=tmp_path)
        other.kill()
    assert process.returncode == 2
    assert "is not a Python process" in process.stderr or "ptrace" in process.stderr
    process = attach(f"--pid={other.pid}", cwd=tmp_path)
    assert process.returncode == 2
    assert f"there is no process {other.pid}" in process.stderr


@pytest.mark.parametrize(
    "arguments", [["--pid"], ["--pid", "x"], ["--pid=1.5"], ["--pid=1", "--try"], ["--pid=1", "a"]]
)
def test_wrong_settings_are_refused(tmp_path, arguments):
    process = attach(*arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert "allowed: " in process.stderr


def test_missing_py_spy_is_named(tmp_path):
    program = Path(sys.executable).with_name("py-spy")
    if program.exists():
        pytest.skip("py-spy is installed beside this Python")
    environment = {"PATH": str(tmp_path)}
    process = run_fastloop(f"--pid={os.getpid()}", cwd=tmp_path, command="attach", **environment)
    assert process.returncode == 2
    assert "which is not installed" in process.stderr
