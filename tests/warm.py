"""Commands that are forks of a process which has everything imported: none of them waits for torch.

Such a command has its own arguments, environment, folder, descriptors, signals and exit status, as
one that is started; only importing is done before it begins, and so is that of its forkserver.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

IMPORTED = (
    *("torch", "tensordict", "sklearn.datasets", "fastloop.sweep", "fastloop.campaign"),
    *("fastloop.reporting.page", "fastloop.reporting.markdown", "fastloop.reporting.table"),
    *(
        "fastloop.arguments",
        "fastloop.launchers.single",
        "fastloop.launchers.torchrun",
        "fastloop.trackers.mlflow",
    ),
    *("fastloop.loaders.raw", "fastloop.loaders.preload", "fastloop.loaders.np_memmap"),
    *("fastloop.loaders.tensorclass", "fastloop.datasets.mydataset", "fastloop.datasets.digits"),
    *("fastloop.datasets.fashion_mnist", "fastloop.alone", "fastloop.optional", "scipy.stats"),
)
"""What commands import; not the modules that they are, nor fastloop.forkserver: they do something
as they are imported."""


def run(
    module: str, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """`python -m <module> <arguments>` in that folder and environment, finished."""
    return begun(module, arguments, cwd, environment).finished()


@dataclass(frozen=True)
class Command:
    """One that runs, and its number."""

    pid: int
    _finish: Callable[[], subprocess.CompletedProcess]

    def finished(self) -> subprocess.CompletedProcess:
        """What it has said, and its status; waits for its end. Call it once."""
        return self._finish()


def begun(
    module: str,
    arguments: tuple[str, ...],
    cwd: Path,
    environment: dict[str, str],
    inside: tuple[str, ...] = (),
) -> Command:
    """The same, running: beside others, each of them the fork of a server of its own.

    inside: what the server is started by, as `ip netns exec <name>`.
    """
    ready(1, inside)
    idle = _idle[inside]
    asked = idle.pop()
    read, write = zip(*(os.pipe() for _ in range(2)), strict=True)
    socket.send_fds(asked, [READY], write)
    for end in write:
        os.close(end)
    request = {"module": module, "arguments": arguments, "cwd": str(cwd)}
    asked.sendall(json.dumps(request | {"environment": environment}).encode() + b"\n")
    said = ["", ""]
    readers = [threading.Thread(target=_read, args=(*each, said)) for each in enumerate(read)]
    for reader in readers:
        reader.start()
    answers = asked.makefile()

    def finish() -> subprocess.CompletedProcess:
        for reader in readers:
            reader.join()
        status = int(answers.readline())
        idle.append(asked)
        return subprocess.CompletedProcess([module, *arguments], status, *said)

    return Command(int(answers.readline()), finish)


def ready(count: int, inside: tuple[str, ...] = ()) -> None:
    """Return when so many servers wait: commands begun now start at once, none before the other."""
    idle = _idle.setdefault(inside, [])
    new = [_server(inside) for _ in range(count - len(idle))]
    for server in new:
        server.recv(len(READY))
    idle += new


def _read(place: int, end: int, said: list[str]) -> None:
    with open(end) as file:
        said[place] = file.read()


READY = b"!"
_idle: dict[tuple[str, ...], list[socket.socket]] = {}
"""Ends of pairs by which servers are asked that have nothing to do."""


def _server(inside: tuple[str, ...]) -> socket.socket:
    """The end of a pair by which a new server is asked; it ends with this process."""
    ours, theirs = socket.socketpair()
    program = f"import sys; sys.path[0] = {str(Path(__file__).parent)!r}; import warm; "
    command = [*inside, sys.executable, "-c", f"{program}warm.serve({theirs.fileno()})"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.shutdown(socket.SHUT_RDWR)  # closing alone would wait for whoever reads from it
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def serve(descriptor: int) -> None:
    """Fork into one command after the other until nobody can ask any more."""
    started_with = set(os.environ)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as fastloop.run, before torch is imported
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # no collection looks through all of it again
    util.spawnv_passfds = _forked_where_it_is_the_forkserver
    with socket.socket(fileno=descriptor) as asked, asked.makefile() as lines:
        asked.sendall(READY)
        while (received := socket.recv_fds(asked, 1, 2))[0]:
            request = json.loads(lines.readline())
            if (pid := os.fork()) == 0:
                break
            for end in received[1]:
                os.close(end)
            asked.sendall(f"{pid}\n".encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            asked.sendall(f"{status}\n".encode())
        else:
            return
    _become(request, received[1], started_with)


def _become(request: dict, ends: list[int], started_with: set[str]) -> None:
    """The command, from what `python -m` sets to its end."""
    # as from a terminal: who was started in the background of a shell ignores SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)
    for number, end in enumerate(ends, 1):
        os.dup2(end, number)
        os.close(end)
    os.chdir(request["cwd"])
    for name in started_with - set(request["environment"]):  # what imports have set stays
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["arguments"]
    os._exit(_finished(request["module"]))


def _finished(module: str) -> int:
    """The exit status; all is done that a Python does at its end, but for taking itself apart,
    which with all these imports takes longer than most commands."""
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status != end.code and end.code is not None:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


_spawnv_passfds = util.spawnv_passfds


def _forked_where_it_is_the_forkserver(path, args, passfds) -> int:
    """The started process' number; a forkserver is forked, and inherits as little as otherwise."""
    if "multiprocessing.forkserver" not in args[-1]:
        return _spawnv_passfds(path, args, passfds)
    if pid := os.fork():
        return pid
    try:
        _inherit_only({0, 1, 2, *map(int, passfds)})
        exec(args[-1], {})
    finally:
        os._exit(1)  # it ends by itself where all is well


def _inherit_only(descriptors: set[int]) -> None:
    """Let nothing else be open, and yet every number be taken: what was inherited and is closed in
    a fork, as a database's connection by MLflow, must not close what has got its number since."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in map(int, os.listdir("/dev/fd")):
        if one not in {*descriptors, nothing}:
            os.dup2(nothing, one)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)
