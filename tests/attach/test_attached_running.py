"""A script that is attached to while it runs: loops that hang, reports at SIGUSR1, and the line on
a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import psutil
import pytest
from commands import run_fastloop

ROWS, COLUMNS = 24, 100
STATUS = re.compile(r"(?:\x1bD\x1b\[1A)?\x1b7\x1b\[[\d;]*r\x1b\[\d+;1H\x1b\[2K([^\x1b]*)\x1b8")
"""A drawing of the line, or its removal, which draws nothing."""
HEAD = """
import sys, time, threading, signal, socket, urllib.request
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 32:
            hang()
        return torch.tensor(index)
"""
LOCKED = f"""{HEAD}
def hang():
    lock.acquire(timeout=8)

lock = threading.Lock()
lock.acquire()
print(sum(int(batch.sum()) for batch in DataLoader(Samples(), 4, num_workers=2)))
"""
SILENT_SERVER = f"""{HEAD}
def hang():
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{{server.getsockname()[1]}}", timeout=8)
    except TimeoutError:
        pass

server = socket.create_server(("127.0.0.1", 0))
print(sum(int(batch.sum()) for batch in DataLoader(Samples(), 4)))
"""
LONG_STEPS = f"""{HEAD}
def hang():
    pass

total = 0
for batch in DataLoader(Samples(), 4):
    if int(batch[0]) in (8, 32):
        stop = time.perf_counter() + 6
        while time.perf_counter() < stop:
            pass
    total += int(batch.sum())
print(total)
"""


def place(text, code):
    """File and line of the first line of the script that has the code."""
    return f"train.py:{text[: text.index(code)].count(chr(10)) + 1}"


def attach(text, cwd, *options):
    (cwd / "train.py").write_text(text)
    process = run_fastloop(*options, "train.py", cwd=cwd, command="attach")
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"{sum(range(64))}\n"
    return " ".join(process.stderr.split())


@pytest.mark.heavy
@pytest.mark.nightly
def test_lock_held_over_a_fork_is_told_once(tmp_path):
    said = attach(LOCKED, tmp_path, "--hang=2")
    assert said.count("has stood still") == 1
    assert f"the loop at {place(LOCKED, 'print(')} has stood still" in said
    assert re.search(r"waits in next\(\) of a DataLoader", said)
    assert re.search(rf"worker 0 \(pid \d+\) is in hang \({place(LOCKED, 'lock.acq')}\)", said)
    assert re.search(r"worker 1 \(pid \d+\) waits for work", said)
    assert re.search(r'File "\S+train.py", line \d+ in __getitem__', said)
    if sys.platform == "linux":
        assert re.search(r"worker 0 \(pid \d+\) waits for a lock", said)
        assert "multiprocessing_context='forkserver'" in said


@pytest.mark.heavy
@pytest.mark.nightly
def test_server_that_does_not_answer_is_named(tmp_path):
    said = attach(SILENT_SERVER, tmp_path, "--hang=2")
    assert said.count("has stood still") == 1
    assert "nothing works on one" in said
    assert re.search(r"the loop's process waits for an answer of 127\.0\.0\.1:\d+", said)
    assert "in readinto (socket.py:" in said
    assert re.search(r'train.py", line \d+ in hang', said)


@pytest.mark.heavy
@pytest.mark.nightly
def test_long_steps_are_no_hang_of_the_loader_and_told_once(tmp_path):
    said = attach(LONG_STEPS, tmp_path, "--hang=2")
    assert said.count("has stood still") == 1
    assert "It has its batch, and computes" in said
    places = [place(LONG_STEPS, code) for code in ("while", "            pass")]
    assert any(f"in <module> ({each})" in said for each in places)


STEPS = """
import signal, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1:] == ["handle"]:
    signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
for batch in DataLoader(TensorDataset(torch.arange(80)), 8):
    pass
print("ready", flush=True)
sys.stdin.read()
print("done")
"""


def start(cwd, *arguments):
    (cwd / "train.py").write_text(STEPS)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "fastloop", "attach", *arguments]
    process = subprocess.Popen(command, cwd=cwd, text=True, **pipes)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def read_until(file, text):
    lines = []
    while not lines or text not in lines[-1]:
        lines.append(file.readline())
        assert lines[-1], lines
    return "".join(lines)


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["command", "script"])
def test_sigusr1_reports_and_lets_the_script_go_on(tmp_path, target):
    with start(tmp_path, "train.py") as process:
        own = psutil.Process(process.pid)
        (script,) = own.children()
        (own if target == "command" else script).send_signal(signal.SIGUSR1)
        said = read_until(process.stderr, "files:")
        output, errors = process.communicate()
    assert process.returncode == 0
    assert output == "done\n"
    first, last = sorted(tmp_path.glob("outputs/attach/*/attach.json"))
    reports = [json.loads(path.read_text()) for path in (first, last)]
    assert [report["status"] for report in reports] == [None, 0]
    assert [report["loops"][0]["batches"] for report in reports] == [10, 10]
    assert str(first.parent) in said
    assert str(last.parent) in errors


@pytest.mark.heavy
def test_own_handler_of_sigusr1_wins_and_that_is_told(tmp_path):
    with start(tmp_path, "--hang=1000", "train.py", "handle") as process:
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "handled\n"
        read_until(process.stderr, "its own handler of SIGUSR1")
        output, _ = process.communicate()
    assert (process.returncode, output) == (0, "done\n")
    assert len(list(tmp_path.glob("outputs/attach/*"))) == 1


ON_TERMINAL = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 2400
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(index)

for number, batch in enumerate(DataLoader(Samples(), 8)):
    print(f"step {number}", end="\\r\\n" if number % 2 else "", flush=True)
"""


@pytest.mark.heavy
@pytest.mark.nightly
def test_terminal_shows_the_loop_in_its_last_row(tmp_path):
    (tmp_path / "train.py").write_text(ON_TERMINAL)
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "fastloop", "attach", "train.py"]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=follower, stdout=follower, stderr=follower
    ):
        os.close(follower)
        text = read_terminal(leader)
    drawn = STATUS.findall(text)
    line = r"fastloop: train.py:13: [\d,]+ batches, [\d.]+ samples/s, waits \d+ % \(decode\)"
    assert [each for each in drawn if re.match(line, each)]
    assert drawn[-1] == "", "it is erased"
    assert max(map(len, drawn)) < COLUMNS
    rest = STATUS.sub("", text)
    steps = "".join(f"step {n}" + ("\r\r\n" if n % 2 else "") for n in range(300))
    assert rest.startswith(f"{steps}\r\nfastloop: train.py\r\n")
    assert "\x1b" not in rest
    assert text.rindex("\x1b8") < text.index("verdict: decode")


def read_terminal(leader):
    chunks = []
    while True:
        try:
            chunks.append(os.read(leader, 1 << 16))
        # Linux tells so that no process has the terminal any more.
        except OSError:
            chunks.append(b"")
        if not chunks[-1]:
            return b"".join(chunks).decode()
