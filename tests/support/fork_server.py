"""Commands as forks of a server process that has imported torch and fastloop, which saves seconds.

A forked command has its own arguments, environment, folder, descriptors, signals and exit status,
like a new interpreter; only its imports, and those of its forkserver, are done beforehand.

The workers of pytest-xdist share a server, see shared_server.py; another process starts its own
server once a test needs it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, TextIO

import psutil

PRELOADED = (
    "torch",
    "tensordict",
    "sklearn.datasets",
    "scipy.stats",
    # With what MLflow imports when it first opens a database: a thousand modules, three seconds.
    "mlflow.entities",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "fastloop.sweep.measure",
    "fastloop.sweep.locked_sweep",
    "fastloop.sweep.compare_versions",
    "fastloop.config.check_files",
    "fastloop.config.compose",
    "fastloop.core.optional_libraries",
    "fastloop.core.result",
    "fastloop.core.types",
    "fastloop.explain.explain_job",
    "fastloop.explain.attach.explain_script",
    "fastloop.explain.attach.further_runs",
    "fastloop.explain.attach.live_watch",
    "fastloop.explain.attach.try_changes",
    "fastloop.reporting.html_report",
    "fastloop.reporting.report_files",
    "fastloop.options.benchmark.traversal",
    "fastloop.options.collate.default",
    "fastloop.options.dataset.digits",
    "fastloop.options.dataset.fashion_mnist",
    "fastloop.options.dataset.mydataset",
    "fastloop.options.execution.eager",
    "fastloop.options.launcher.single",
    "fastloop.options.launcher.torchrun",
    "fastloop.options.loader.np_memmap",
    "fastloop.options.loader.preload",
    "fastloop.options.loader.raw",
    "fastloop.options.loader.tensorclass",
    "fastloop.options.model.toynet",
    "fastloop.options.order.random",
    "fastloop.options.placement.direct",
    "fastloop.options.store.npy",
    "fastloop.options.tracker.mlflow",
    "fastloop.options.tracker.none",
    "fastloop.options.transform.none",
    "fastloop.tune.script_tuning",
    "fastloop.tune.run_race",
)
"""Modules that commands import, except those with side effects: the commands' own modules and
fastloop.processes.forkserver_hook."""


def run(
    module: str, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """Run `python -m <module> <arguments>`, or `python <path of a script> <arguments>`, in the
    folder and environment, and wait for its end."""
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
    """Start the command without waiting for it.

    inside: prefix of the command that starts the server, such as `ip netns exec <name>`.
    """
    server = _servers.get(inside) or start_server(inside)
    ours, theirs = socket.socketpair()
    read, write = zip(*(os.pipe() for _ in range(2)), strict=True)
    request = {"module": module, "arguments": arguments, "cwd": str(cwd)}
    replies = ours.makefile()
    ours.close()  # once the file is
    try:
        server.send(request | {"environment": environment}, [*write, theirs.detach()])
        pid = server.read_number(replies)
    except ChildProcessError:
        for each in (replies, *map(open, read)):
            each.close()
        raise
    output = ["", ""]
    readers = [
        threading.Thread(target=_read_output, args=(*each, output)) for each in enumerate(read)
    ]
    for reader in readers:
        reader.start()

    def finish() -> subprocess.CompletedProcess:
        for reader in readers:
            reader.join()
        status = server.read_number(replies)
        replies.close()
        return subprocess.CompletedProcess([module, *arguments], status, *output)

    return Command(pid, finish)


@dataclass(frozen=True)
class Server:
    """A server's process, unless another one has started it, and this end of the socket for its
    requests."""

    process: subprocess.Popen | None
    connection: socket.socket
    inside: tuple[str, ...]

    def send(self, request: dict, descriptors: Sequence[int]) -> None:
        """Send a request with the descriptors of its command, and close these here."""
        try:
            socket.send_fds(self.connection, [READY], descriptors)
            self.connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._end() from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def read_number(self, replies: TextIO) -> int:
        """The next line of a command's replies."""
        line = replies.readline()
        if not line:
            raise self._end()
        return int(line)

    def _end(self) -> ChildProcessError:
        """The error that says how the server has ended, which no test may bring about."""
        if self.process is None:
            _servers.pop(self.inside, None)  # the next command starts one of this process's own
            return ChildProcessError("the server of commands, or what waits for one, has ended")
        try:
            status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ChildProcessError("the process that waits for a test's command has ended")
        _servers.pop(self.inside, None)
        return ChildProcessError(f"the server of commands has ended with exit status {status}")


def _read_output(number: int, descriptor: int, output: list[str]) -> None:
    with open(descriptor) as file:
        output[number] = file.read()


READY = b"!"
"""What descriptors are sent with."""
END_S = 5
"""Time in which a server whose socket is closed has ended."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_servers: dict[tuple[str, ...], Server] = {}
"""Servers by `inside`."""


def connect(address: str) -> None:
    """Let the server that another process has started run this process's commands, too.

    Raises OSError if it has ended.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    _keep(Server(None, connection, ()))


def start_server(
    inside: tuple[str, ...] = (),
    preloaded: tuple[str, ...] = PRELOADED,
    address: str = "",
) -> Server:
    """Start a server, which ends with this process.

    address: path of a socket by which other processes may connect; empty: none may.
    Raises OSError if it can be no address, such as a long path.
    """
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        if address:
            listener.bind(address)
            listener.listen()
        ours, theirs = socket.socketpair()
        stack.enter_context(theirs)
        descriptors = [theirs.fileno(), *([listener.fileno()] if address else [])]
        program = f"import sys; sys.path[0] = {str(Path(__file__).parent)!r}; import fork_server; "
        program += f"fork_server.serve({preloaded}, *{descriptors})"
        command = [*inside, sys.executable, "-c", program]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)
    return _keep(Server(process, ours, inside))


def _keep(server: Server) -> Server:
    """Keep the server for further commands, until this process ends."""
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:  # a fork's exit handlers must not end the server of its parent
            return
        with suppress(OSError):  # it has ended
            # close alone does not wake up the reading server
            server.connection.shutdown(socket.SHUT_RDWR)
        server.connection.close()
        if server.process is None:
            return
        try:
            server.process.wait(END_S)
        except subprocess.TimeoutExpired:  # it is stopped, or imports still
            server.process.kill()
            server.process.wait()

    atexit.register(end)
    _servers[server.inside] = server
    return server


def serve(preloaded: tuple[str, ...], first: int, listening: int | None = None) -> None:
    """Fork into one command after the other until the first connection is closed.

    first: descriptor of a connection to the process that has started this one. listening:
    descriptor of a socket to which other processes connect.
    A signal that a test sends to more processes than its own command does not end the server.
    """
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    started_with = set(os.environ)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as fastloop.run, before torch is imported
    gc.disable()  # looking for garbage among objects that stay takes a tenth of the imports
    for name in preloaded:
        importlib.import_module(name)
    gc.freeze()  # excludes the imported objects from later collections
    gc.enable()
    util.spawnv_passfds = _fork_forkserver
    requests = _receive_requests(first, listening)
    while received := next(requests, None):
        if os.fork() == 0:
            break
        for each in received[1]:
            os.close(each)
    else:
        os._exit(0)
    requests.close()
    request, (*pipes, reply) = received
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        for each in pipes:
            os.close(each)
        os.write(reply, f"{pid}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(reply, f"{status}\n".encode())
        os._exit(0)
    os.close(reply)
    _run_command(request, pipes, started_with)


def _receive_requests(
    first: int, listening: int | None
) -> Generator[tuple[dict, list[int]], None, None]:
    """The requests with their descriptors, until the first connection is closed; closing the
    generator closes all connections."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:

        def register(connection: socket.socket) -> Any:
            stack.enter_context(connection)
            lines = stack.enter_context(connection.makefile())
            return selector.register(connection, selectors.EVENT_READ, lines)

        owner = register(socket.socket(fileno=first))
        if listening is not None:
            listener = stack.enter_context(socket.socket(fileno=listening))
            selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    register(key.fileobj.accept()[0])
                    continue
                received = socket.recv_fds(key.fileobj, 1, 3)
                if received[0]:
                    yield json.loads(key.data.readline()), received[1]
                elif key == owner:
                    return
                else:
                    selector.unregister(key.fileobj)


def _run_command(request: dict, pipes: list[int], started_with: set[str]) -> None:
    """Set up the process like `python -m`, run the command and exit."""
    # as from a terminal: background processes of a shell ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sign in SIGNALS[1:]:
        signal.signal(sign, signal.SIG_DFL)
    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe, number)
        os.close(pipe)
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # that of the environment, which an import may have looked up before
    for name in started_with - set(request["environment"]):  # variables set by imports stay
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    is_script = request["module"].endswith(".py")
    sys.path[0] = os.path.dirname(request["module"]) if is_script else request["cwd"]
    sys.argv[1:] = request["arguments"]
    os._exit(_run_module(request["module"]))


def _run_module(module: str) -> int:
    """Run the module or script and Python's exit handlers; return the exit status.

    The interpreter is not finalized: with all these imports that takes longer than most commands.
    """
    status, is_interrupted = 0, False
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status != end.code and end.code is not None:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        status, is_interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if is_interrupted:  # the interpreter then ends by the signal itself
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
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
