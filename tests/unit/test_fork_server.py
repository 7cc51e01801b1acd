"""The server of the tests' commands: what ends it, and what is said then."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import fork_server
import pytest

SUPPORT = Path(fork_server.__file__).parent
INSIDE = ("env",)
"""Prefix of a server that no other test uses."""


@pytest.fixture
def server(tmp_path):
    """A server that has imported nothing beforehand, and has run a command."""
    server = fork_server.start_server(INSIDE, preloaded=())
    assert run(tmp_path).returncode == 0
    yield server
    fork_server._servers.pop(INSIDE, None)


def run(folder):
    return fork_server.start("platform", (), folder, dict(os.environ), INSIDE).wait()


def test_server_survives_what_a_test_sends_to_other_processes(server, tmp_path):
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        server.process.send_signal(sign)
    assert run(tmp_path).stdout.startswith("Linux")
    assert server.process.poll() is None


@pytest.mark.parametrize("is_reaped", [False, True])
def test_exit_status_of_a_killed_server_is_told(server, tmp_path, is_reaped):
    server.process.kill()
    if is_reaped:
        server.process.wait()
    with pytest.raises(ChildProcessError, match="server of commands has ended with exit status -9"):
        run(tmp_path)
    assert INSIDE not in fork_server._servers


def test_commands_run_at_the_same_time(server, tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(
        "import os, sys, time\n"
        "open(sys.argv[1], 'w').close()\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
        "sys.exit(int(sys.argv[3]))\n"
    )
    commands = [
        fork_server.start(str(script), arguments, tmp_path, dict(os.environ), INSIDE)
        for arguments in (("a", "b", "3"), ("b", "a", "4"))
    ]
    assert [command.wait().returncode for command in commands] == [3, 4]


def test_server_is_shared_until_the_process_that_has_started_it_leaves_it(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "_servers", {})
    address = f"{tempfile.mkdtemp()}/socket"  # a longer path, such as tmp_path, can be no address
    started = fork_server.start_server(INSIDE, preloaded=(), address=address)
    fork_server.connect(address)
    run_shared = ("platform", (), tmp_path, dict(os.environ))
    assert fork_server.run(*run_shared).stdout.startswith("Linux")
    started.connection.shutdown(socket.SHUT_RDWR)
    assert started.process.wait() == 0
    with pytest.raises(ChildProcessError, match="the server of commands, or what waits for one"):
        fork_server.run(*run_shared)


STOPS = """
import os, signal, fork_server
fork_server.END_S = 0.1
server = fork_server.start_server(preloaded=())
server.process.send_signal(signal.SIGSTOP)
os.waitpid(server.process.pid, os.WUNTRACED)
print(server.process.pid)
"""


def test_server_that_does_not_end_is_killed(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", STOPS]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not Path("/proc", process.stdout.strip()).exists()


@pytest.mark.heavy
@pytest.mark.parametrize("server", ["has ended", "can have no address"])
def test_workers_start_their_own_server_if_they_can_share_none(tmp_path, server):
    (tmp_path / "test_worker.py").write_text(
        "import fork_server\ndef test_it(): assert fork_server._servers == {}\n"
    )
    folder = Path(tempfile.mkdtemp())
    if server == "has ended":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "commands.socket"))
    else:
        folder /= "x" * 120
        folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pytest", "-p", "shared_server", "-n", "2", "-W", "error"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull]
    process = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert "1 passed" in process.stdout, process.stdout + process.stderr
