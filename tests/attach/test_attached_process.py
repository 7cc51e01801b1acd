"""A script that is attached to: started and ended as python does it. None imports torch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import run_fastloop, spawn_fastloop

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"
NOTHING = (
    "fastloop: no DataLoader was iterated over, nothing to explain\n"
    "A loop over other batches is seen if it is over fastloop.watch(batches).\n"
)


def nothing(status):
    """The line about a script that has ended with this status, and without a batch."""
    if not status:
        return NOTHING
    way = f"was killed by {signal.Signals(-status).name}" if status < 0 else "failed"
    way += f" (exit status {status})" if status > 0 else ""
    before = "before it had worked on a batch of a DataLoader, nothing to explain"
    return f"fastloop: the script {way} {before}\n"


def run_plain(*arguments, cwd):
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def run_attached(*arguments, cwd):
    return run_fastloop(*arguments, cwd=cwd, command="attach")


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["scripts/describe_process.py", "--epochs", "3", "-m", "x y", "--help"], ".."),
        ([str(SCRIPTS / "describe_process.py")], "."),
        (["-m", "package.module", "-v", "--", "a"], "."),
        (["-m", "package", "a"], "."),
        (["folder", "a"], "."),
    ],
)
def test_script_is_started_as_by_python(arguments, folder, tmp_path):
    scripts = tmp_path / "scripts"
    for place in ("describe_process.py", "folder/__main__.py", "package/module.py"):
        (scripts / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SCRIPTS / "describe_process.py", scripts / place)
    (scripts / "package" / "__init__.py").touch()
    cwd = scripts / folder
    plain, attached = run_plain(*arguments, cwd=cwd), run_attached(*arguments, cwd=cwd)
    assert attached.stdout == plain.stdout
    assert attached.stderr == plain.stderr + nothing(plain.returncode)
    assert attached.returncode == plain.returncode


def test_error_of_syntax_is_shown_as_by_python(tmp_path):
    (tmp_path / "train.py").write_text("import sys\n\nprint(1\n")
    plain, attached = (run("train.py", cwd=tmp_path) for run in (run_plain, run_attached))
    assert attached.stderr == plain.stderr + nothing(plain.returncode)
    assert attached.returncode == plain.returncode


@pytest.mark.parametrize("way", ["raise", "hook", "custom", "interrupt", "signal", "_exit", "text"])
def test_script_ends_as_by_python(way):
    plain, attached = (run("end.py", way, cwd=SCRIPTS) for run in (run_plain, run_attached))
    assert attached.stdout == plain.stdout
    assert attached.stderr == plain.stderr + nothing(plain.returncode)
    assert attached.returncode == plain.returncode


@pytest.mark.parametrize(
    ("number", "way", "printed", "status"),
    [
        pytest.param(signal.SIGTERM, "die", "", -signal.SIGTERM, marks=pytest.mark.heavy),
        (signal.SIGINT, "die", "interrupted\n", -signal.SIGINT),
        (signal.SIGTERM, "handle", "handled SIGTERM\n", 5),
        pytest.param(signal.SIGUSR1, "handle", "handled SIGUSR1\n", 5, marks=pytest.mark.heavy),
    ],
)
def test_signals_reach_the_script_and_end_the_command_as_it(number, way, printed, status):
    command = [sys.executable, "-m", "fastloop", "attach", "wait_for_signal.py", way]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=SCRIPTS, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, errors = process.communicate()
    assert output == printed
    assert errors.endswith(nothing(status))
    assert process.returncode == status


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_folder_of_a_killed_command_is_removed_by_the_next_one(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (temporary / "fastloop-attach-notes").mkdir()
    (tmp_path / "wait.py").write_text("import sys\n\nsys.stdin.read()\n")
    (tmp_path / "end.py").write_text("")
    command = [sys.executable, "-m", "fastloop", "attach"]
    with subprocess.Popen([*command, "wait.py"], cwd=tmp_path, stdin=subprocess.PIPE) as killed:
        process = psutil.Process(killed.pid)
        while not (children := process.children()) or not list(temporary.glob("*attach-*-*")):
            time.sleep(0.05)
        killed.kill()
        killed.wait()
        (folder,) = temporary.glob("fastloop-attach-*-*")
        subprocess.run([*command, "end.py"], cwd=tmp_path, check=True, capture_output=True)
        assert folder.exists()  # its script still runs
        assert killed.stdin is not None
        killed.stdin.close()
        psutil.wait_procs(children)
    subprocess.run([*command, "end.py"], cwd=tmp_path, check=True, capture_output=True)
    assert [path.name for path in temporary.glob("fastloop-attach-*")] == ["fastloop-attach-notes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch.py", "-x"], "attach nosuch.py: no such file; allowed: a Python script, or -m"),
        (["--epochs", "3"], "attach --epochs: allowed: --try, --yes, --copy, --minutes=, "),
        (
            ["--batches", "a.py"],
            "attach --batches: did you mean --batches=<number>? allowed: --try",
        ),
        ([], "attach: allowed: [-m] <script> [its arguments]"),
        (["-m"], "attach -m: allowed: -m <module> [its arguments]"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(tmp_path, arguments, message):
    process = run_attached(*arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert process.stderr.startswith(message)
    assert process.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


WARNS = """
import warnings
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

class Loader(DataLoader):
    def __iter__(self):
        warnings.warn("an odd loader", stacklevel=2)
        return super().__iter__()

def transform(sample):
    warnings.warn("an odd transform", stacklevel=2)
    return sample

def collate(samples):
    warnings.warn("an odd batch", stacklevel=2)
    return default_collate(samples)

class Samples(Dataset):
    def __init__(self):
        self.transform = transform

    def __len__(self):
        return 8

    def __getitem__(self, index):
        warnings.warn("an odd sample", stacklevel=2)
        warnings.warn("an odd caller", stacklevel=5)
        return self.transform(torch.zeros(1))

for batch in Loader(Samples(), 4, collate_fn=collate):
    pass
"""


@pytest.mark.heavy
def test_nothing_of_the_probe_is_left_open_at_the_end(tmp_path):
    """Of which Python would warn a script that has all warnings shown."""
    script = tmp_path / "quick.py"
    script.write_text("from torch.utils.data import DataLoader\nprint([*DataLoader([1], 1)])\n")
    shown = {"PYTHONWARNINGS": "always::ResourceWarning"}
    process = spawn_fastloop(str(script), cwd=tmp_path, command="attach", **shown)
    assert process.stdout == "[tensor([1])]\n", process.stderr
    assert "ResourceWarning" not in process.stderr


@pytest.mark.heavy
def test_warnings_are_shown_at_the_lines_without_attach(tmp_path):
    script = tmp_path / "warns.py"
    script.write_text(WARNS)
    attached = run_fastloop(str(script), cwd=tmp_path, command="attach")
    plain = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    places = re.findall(r"^.+:\d+: UserWarning: .*$", plain.stderr, re.M)
    assert len(places) == 5
    assert re.findall(r"^.+:\d+: UserWarning: .*$", attached.stderr, re.M) == places
