"""Commands as forks of a server process that has imported torch and fastloop, which saves seconds.

A forked command has its own arguments, environment, folder, descriptors, signals and exit status,
like a new interpreter; only its imports, and those of its forkserver, are done beforehand.
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
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

import psutil

PRELOADED = (
    *("torch", "tensordict", "sklearn.datasets", "fastloop.sweep.measure", "fastloop.sweep.rounds"),
    *("fastloop.config.compose", "fastloop.data.spot_check", "fastloop.sweep.early_check"),
    *("fastloop.reporting.html", "fastloop.reporting.markdown", "fastloop.reporting.terminal"),
    *(
        "fastloop.core.result",
        "fastloop.options.launcher.single",
        "fastloop.options.launcher.torchrun",
        "fastloop.options.tracker.mlflow",
    ),
    *(
        "fastloop.options.loader.raw",
        "fastloop.options.loader.preload",
        "fastloop.options.loader.np_memmap",
    ),
    *("fastloop.options.order.random", "fastloop.options.benchmark.traversal"),
    *(
        "fastloop.options.loader.tensorclass",
        "fastloop.options.dataset.mydataset",
        "fastloop.options.dataset.digits",
    ),
    *(
        "fastloop.options.dataset.fashion_mnist",
        "fastloop.core.types",
        "fastloop.core.optional",
        "scipy.stats",
    ),
)
"""Modules that commands import, except those with side effects: the commands' own modules and
fastloop.processes.forkserver_hook."""


def run(
    module: str, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """Run `python -m <module> <arguments>` in the folder and environment, and wait for its end."""
    return start(module, arguments, cwd, environment).wait()


@dataclass(frozen=True)
class Command:
    """A running command and its process id."""

    pid: int
    _finish: Callable[[], subprocess.CompletedProcess]

    @property
    def process(self) -> psutil.Process:
        """The process, while it runs."""
        return psutil.Process(self.pid)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; fail with the output where the command ends before."""
        while not condition():
            assert psutil.pid_exists(self.pid), self.wait()
            time.sleep(0.05)

    def wait(self) -> subprocess.CompletedProcess:
        """Wait for the end; return output and exit status. To be called once."""
        return self._finish()


def start(
    module: str,
    arguments: tuple[str, ...],
    cwd: Path,
    environment: dict[str, str],
    inside: tuple[str, ...] = (),
) -> Command:
    """Start the command without waiting for it; concurrent commands are forks of different servers.

    inside: prefix of the command that starts the server, such as `ip netns exec <name>`.
    """
    start_servers(1, inside)
    idle_servers = _idle_servers[inside]
    server = idle_servers.pop()
    read, write = zip(*(os.pipe() for _ in range(2)), strict=True)
    socket.send_fds(server, [READY], write)
    for descriptor in write:
        os.close(descriptor)
    request = {"module": module, "arguments": arguments, "cwd": str(cwd)}
    server.sendall(json.dumps(request | {"environment": environment}).encode() + b"\n")
    output = ["", ""]
    readers = [
        threading.Thread(target=_read_output, args=(*each, output)) for each in enumerate(read)
    ]
    for reader in readers:
        reader.start()
    replies = server.makefile()

    def finish() -> subprocess.CompletedProcess:
        for reader in readers:
            reader.join()
        status = int(replies.readline())
        idle_servers.append(server)
        return subprocess.CompletedProcess([module, *arguments], status, *output)

    return Command(int(replies.readline()), finish)


def start_servers(count: int, inside: tuple[str, ...] = ()) -> None:
    """Start servers until `count` are idle, so that as many commands can start at the same time."""
    idle_servers = _idle_servers.setdefault(inside, [])
    new = [_server(inside) for _ in range(count - len(idle_servers))]
    for server in new:
        server.recv(len(READY))
    idle_servers += new


def _read_output(number: int, descriptor: int, output: list[str]) -> None:
    with open(descriptor) as file:
        output[number] = file.read()


READY = b"!"
_idle_servers: dict[tuple[str, ...], list[socket.socket]] = {}
"""Sockets of idle servers, by `inside`."""


def _server(inside: tuple[str, ...]) -> socket.socket:
    """Start a server, which ends with this process; return the socket for its requests."""
    ours, theirs = socket.socketpair()
    program = f"import sys; sys.path[0] = {str(Path(__file__).parent)!r}; import fork_server; "
    command = [*inside, sys.executable, "-c", f"{program}fork_server.serve({theirs.fileno()})"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:  # a fork's exit handlers must not end the server of its parent
            return
        ours.shutdown(socket.SHUT_RDWR)  # close alone does not wake up the reading server
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def serve(descriptor: int) -> None:
    """Fork into one command after the other until the socket is closed."""
    started_with = set(os.environ)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as fastloop.run, before torch is imported
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # excludes the imported objects from later collections
    util.spawnv_passfds = _fork_forkserver
    with socket.socket(fileno=descriptor) as connection, connection.makefile() as lines:
        connection.sendall(READY)
        while (received := socket.recv_fds(connection, 1, 2))[0]:
            request = json.loads(lines.readline())
            if (pid := os.fork()) == 0:
                break
            for pipe in received[1]:
                os.close(pipe)
            connection.sendall(f"{pid}\n".encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.sendall(f"{status}\n".encode())
        else:
            return
    _run_command(request, received[1], started_with)


def _run_command(request: dict, pipes: list[int], started_with: set[str]) -> None:
    """Set up the process like `python -m`, run the command and exit."""
    # as from a terminal: background processes of a shell ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)
    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe, number)
        os.close(pipe)
    os.chdir(request["cwd"])
    for name in started_with - set(request["environment"]):  # variables set by imports stay
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["arguments"]
    os._exit(_run_module(request["module"]))


def _run_module(module: str) -> int:
    """Run the module and Python's exit handlers; return the exit status.

    The interpreter is not finalized: with all these imports that takes longer than most commands.
    """
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


def _fork_forkserver(path, args, passfds) -> int:
    """Fork for a forkserver instead of starting a new interpreter; return the process id."""
    if "multiprocessing.forkserver" not in args[-1]:
        return _spawnv_passfds(path, args, passfds)
    if pid := os.fork():
        return pid
    try:
        _inherit_only({0, 1, 2, *map(int, passfds)})
        exec(args[-1], {})
    finally:
        os._exit(1)  # reached only after an error


def _inherit_only(descriptors: set[int]) -> None:
    """Replace all other open descriptors by /dev/null.

    Their numbers stay in use: an inherited object, such as MLflow's database connection, may close
    its descriptor later and must not hit a new file with the same number.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor not in {*descriptors, null}:
            os.dup2(null, descriptor)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)
