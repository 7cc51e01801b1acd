"""Processes that read a Dataset end with the program that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import os_threads
import psutil
import pytest

PROGRAM = """
import os, signal, sys, threading, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
from fastloop import FastLoader

class Blocked(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index > 12 and sys.argv[1] == "blocks":
            threading.Event().wait()
        return os.getpid()

settings = {"transform": abs} if sys.argv[2] == "thread" else {}
loader = FastLoader(Blocked(), 1, num_workers=2, persistent_workers=True, **settings)
running = iter(loader)
print(*sorted({int(next(running)) for _ in range(12)}), flush=True)
if sys.argv[1] != "ends":
    for batch in running:
        pass
    threading.Event().wait()
"""


def begin(*arguments: str) -> tuple[subprocess.Popen, list[int]]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    return process, pids


def num_alive(pids: list[int]) -> int:
    return sum(map(psutil.pid_exists, pids))


@pytest.mark.heavy
@pytest.mark.parametrize("receiver", ["loop", "thread"])
def test_interrupt_ends_an_epoch_and_its_processes_which_block_for_ever(receiver):
    process, pids = begin("blocks", receiver)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)  # until the loop waits
    process.send_signal(signal.SIGINT)
    for pid in pids:  # a terminal sends it to all of them
        os.kill(pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert errors.count(b"KeyboardInterrupt") == 1
    assert process.returncode == -signal.SIGINT
    assert os_threads.falls_to(0, lambda: num_alive(pids))


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["blocks", "waits", "ends"])
def test_processes_end_with_their_program(way):
    process, pids = begin(way, "loop")
    try:
        if way == "ends":
            assert process.wait(120) == 0
        elif way == "waits":
            process.kill()
            assert os_threads.falls_to(0, lambda: num_alive(pids))
        else:
            process.terminate()
            process.wait(120)
            for pid in pids:  # a Dataset that blocks for ever, as DataLoader leaves it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert errors == b""
    assert os_threads.falls_to(0, lambda: num_alive(pids))
