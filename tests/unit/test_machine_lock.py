"""The lock of measuring: what stands in its place may be anything that another user wrote."""

from __future__ import annotations

import os
import threading
from importlib import import_module
from pathlib import Path

import pytest
from filelock import FileLock

from fastloop.cli.commands import module_of
from fastloop.core.stall_limit import limit_stalls
from fastloop.core.types import MachineBusy, UsageError
from fastloop.sweep import machine_lock
from fastloop.sweep.machine_lock import WAIT_HINT, holder_path, lock_machine


@pytest.fixture
def lock_path(tmp_path, monkeypatch) -> Path:
    """The path of the lock, in a folder of its own."""
    path = tmp_path / "fastloop-measures.lock"
    monkeypatch.setenv("FASTLOOP_LOCK", str(path))
    return path


def test_lock_names_its_holder_and_is_free_afterwards(lock_path):
    message = r"\(process \d+ in /"
    with lock_machine(wait=False), pytest.raises(MachineBusy, match=message):
        lock_machine(wait=False).__enter__()
    with lock_machine(wait=False):
        pass
    assert not holder_path(lock_path).exists()


@pytest.mark.skipif(os.name != "posix", reason="only there all users share /tmp")
def test_lock_is_the_same_for_commands_with_different_temporary_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("FASTLOOP_LOCK")
    paths = set()
    for name in ("a", "b"):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        paths.add(machine_lock._lock_path())
    assert paths == {Path("/tmp/fastloop-measures.lock")}


@pytest.mark.parametrize("holder", [b"\xff\xfe\x1b[31m red\n", b"", b"x" * 100_000, "a folder"])
def test_foreign_holder_file_is_printed_in_one_printable_line(lock_path, holder):
    path = holder_path(lock_path)
    path.mkdir() if holder == "a folder" else path.write_bytes(holder)
    with FileLock(lock_path), pytest.raises(MachineBusy) as error, lock_machine(wait=False):
        pass
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("kind", ["pipe", "endless file"])
def test_pipe_or_link_in_the_place_of_the_holder_is_not_read(lock_path, kind):
    path = holder_path(lock_path)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with (
        limit_stalls(10.0),
        FileLock(lock_path),
        pytest.raises(MachineBusy, match="another fastloop measures"),
        lock_machine(wait=False),
    ):
        pass


@pytest.mark.parametrize(("hint", "ending"), [("", " (unknown)"), (WAIT_HINT, f": {WAIT_HINT}")])
def test_message_ends_with_the_settings_of_the_command(lock_path, hint, ending):
    locked = lock_machine(wait=False, hint=hint)
    with FileLock(lock_path), pytest.raises(MachineBusy) as error, locked:
        pass
    assert str(error.value).endswith(ending)


@pytest.mark.parametrize(
    ("command", "arguments"), [("log", ["."]), ("clean", ["stores", "yes=true"])]
)
def test_command_without_such_settings_advises_none(
    lock_path, tmp_path, monkeypatch, command, arguments
):
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setattr("sys.argv", ["fastloop", *arguments])
    with FileLock(lock_path), pytest.raises(SystemExit) as error:
        import_module(module_of(command)).main()
    assert "another fastloop measures on this machine" in str(error.value)
    assert "=true" not in str(error.value)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folder_or_link_in_the_place_of_the_lock_is_named(lock_path, kind):
    victim = lock_path.with_name("victim")
    victim.write_text("precious")
    lock_path.mkdir() if kind == "folder" else lock_path.symlink_to(victim)
    message = f"^FASTLOOP_LOCK={lock_path}: .*; allowed: the path of a new or an empty file$"
    with pytest.raises(MachineBusy, match=message), lock_machine(wait=False):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["/", "/proc/x", "/dev/null", "notes.txt"])
def test_what_is_no_lock_of_fastloop_is_named_and_stays_as_it_is(tmp_path, monkeypatch, name):
    path, beside = tmp_path / "notes.txt", tmp_path / "notes.holder"
    path.write_text("precious")
    path.chmod(0o600)
    beside.write_text("important")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTLOOP_LOCK", name)
    message = (
        f"^FASTLOOP_LOCK={tmp_path / name}: [^\n]*; allowed: the path of a new or an empty file$"
    )
    with pytest.raises(MachineBusy, match=message), lock_machine(wait=False):
        pass
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("precious", 0o600)
    assert beside.read_text() == "important"


def test_holder_of_the_lock_is_named_in_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLOOP_LOCK", str(tmp_path / "measures.lock"))
    (tmp_path / "measures.holder").write_text("important")
    with lock_machine(wait=False):
        pass
    assert (tmp_path / "measures.holder").read_text() == "important"


def test_waiting_command_prints_what_it_waits_for(lock_path, capfd):
    is_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with FileLock(lock_path):
            is_held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    holder_path(lock_path).write_text("process 7 in /there")
    timer = threading.Timer(0.3, release.set)
    timer.start()
    with lock_machine(wait=True):
        assert release.is_set()
    for thread in (holder, timer):
        thread.join()
    message = "another fastloop measures on this machine (process 7 in /there): waiting for its end"
    assert capfd.readouterr().err == f"{message}\n"


def test_data_and_settings_are_checked_before_the_wait(lock_path):
    def check() -> None:
        raise UsageError("no such folder")

    message = "no such folder"
    with FileLock(lock_path), pytest.raises(UsageError, match=message), lock_machine(True, check):
        pass
    with lock_machine(True, check):  # free: preparing finds it in a moment
        pass
