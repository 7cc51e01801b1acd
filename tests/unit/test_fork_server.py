"""The server of the tests' commands: what ends it, and what is said then."""

from __future__ import annotations

import os
import signal
import socket
import tempfile

import fork_server
import pytest

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
