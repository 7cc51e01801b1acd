"""Trials of several ranks: every way to start them, and every way in which they may end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import fork_server
import psutil
import pytest
from commands import QUICK, results, run_fastloop, runs, start_fastloop, trial_starts
from options import MYDATASET, require_library
from rank_commands import run_two_ranks
from shared_memory import mapped_names

from fastloop.core.launcher import RankTask
from fastloop.core.types import JobFailed
from fastloop.options.launcher.torchrun import TorchrunLauncher
from fastloop.processes.rank_group import barrier, rank, world_size
from fastloop.processes.store_messages import connect, host_store
from fastloop.processes.torchrun_env import StoreAddress

pytestmark = pytest.mark.slow
TWO = ("launcher=torchrun", "launcher.nproc_per_node=2")
PLAIN = ("epochs=1", "trials=1", "tracker=none", "report=false", *MYDATASET)
USER_CODE = """
import os
import signal
import sys
import time
from contextlib import contextmanager

from fastloop.options.loader.raw import RawLoader


class Noisy(RawLoader):
    '''Prints and records the rank that opens it.'''

    @contextmanager
    def open(self, prepared, plan):
        for stream in (sys.stdout, sys.stderr):
            print(f"opened by rank {plan.rank}", file=stream)
        with open("opened", "a") as file:
            print(plan.rank, plan.world_size, os.getpid(), file=file)
        with RawLoader.open(self, prepared, plan) as epochs:
            yield epochs


class Raises(RawLoader):
    '''Fails on one rank when it is opened.'''

    failing_rank = 1

    @contextmanager
    def open(self, prepared, plan):
        if plan.rank == self.failing_rank:
            print("a last word")
            self.end()
        with RawLoader.open(self, prepared, plan) as epochs:
            yield epochs

    def end(self):
        raise ValueError("no such column: x")


class RaisesFirst(Raises):
    failing_rank = 0


class Killed(Raises):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class KilledFirst(Killed):
    failing_rank = 0


class KilledInAStep(Killed):
    @contextmanager
    def open(self, prepared, plan):
        def killed_epochs(epoch):
            for number, batch in enumerate(epochs(epoch)):
                if (plan.rank, epoch, number) == (1, 0, 1):
                    self.end()
                yield batch

        with RawLoader.open(self, prepared, plan) as epochs:
            yield killed_epochs


class Leaves(Raises):
    def end(self):
        sys.exit(7)


class Fills(Raises):
    def end(self):
        raise MemoryError


class LosesItsServer(Raises):
    def end(self):
        raise ConnectionError("the server is gone")


class Hangs(Raises):
    def end(self):
        time.sleep(600)


class Stops(Raises):
    def end(self):
        os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A working folder with a module of user loaders."""
    (tmp_path / "mine.py").write_text(USER_CODE)
    return tmp_path


def succeeded_silently(process: subprocess.CompletedProcess) -> bool:
    return (process.returncode, process.stdout, process.stderr) == (0, "", "")


def existing_files() -> set[str]:
    """Paths in shared memory and TMPDIR."""
    folders = [Path("/dev/shm"), Path(os.environ["TMPDIR"])]
    paths = {str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return {path for path in paths if not re.search("fastloop-measures|inductor", path)}


def _belongs_to_a_live_process(path: str) -> bool:
    """True for shared memory of a live process, perhaps of another test."""
    if owner := re.search(r"/(?:torch_|sem\.loky-)(\d+)", path):
        return psutil.pid_exists(int(owner[1]))
    return Path(path).name in mapped_names(psutil.pids())


def assert_no_files_are_left(before: set[str], ignored: str = "") -> None:
    """Assert that there are no other files than before; those of concurrent tests go by and by."""
    for _ in range(1200):
        new = [path for path in existing_files() - before if not ignored or ignored not in path]
        new = [path for path in new if not _belongs_to_a_live_process(path)]
        if not new:
            return
        time.sleep(0.1)
    assert new == []


def num_ranks(result) -> int:
    """Number of ranks of every trial."""
    windows = [trial.benchmarks["traversal"] for trial in result.trials]
    (count,) = {len(window.rank_seconds) or 1 for window in windows}
    assert count == result.params["world_size"]
    return count


TORCHRUN, MODULE = "torch.distributed.run", ("-m", "fastloop.run")
"""torchrun's module, and the last of its own arguments."""
START_COMMANDS = {
    "by itself": ("fastloop.run", TWO, 2),
    "torchrun with one process": (TORCHRUN, ("--nproc_per_node=1", *MODULE), 1),
    "standalone": (TORCHRUN, ("--standalone", "--nproc-per-node", "2", *MODULE, TWO[0]), 2),
}


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("form", START_COMMANDS)
def test_every_way_to_start_ranks_prints_on_rank_0_only(folder, database, form):
    module, arguments, size = START_COMMANDS[form]
    sweep = ("loader._target_=mine.Noisy", *QUICK[:3], "tracker=mlflow", *MYDATASET)
    arguments = (*arguments, *sweep, "-m", "batch_size=16,32", "report=false")
    process = fork_server.run(module, arguments, folder, dict(os.environ))
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("files:  ") == process.stdout.count("charts: ") == 1
    assert process.stdout.count("mean (std) of the trials") == 1
    assert len(list(folder.glob("outputs/20*/*"))) == 1
    assert [num_ranks(result) for result in results(folder)] == [size, size]
    mlflow_runs = runs(folder)
    assert [run.info.status for run in mlflow_runs] == ["FINISHED", "FINISHED"]
    assert {run.data.params["world_size"] for run in mlflow_runs} == {str(size)}
    for output in (process.stdout, process.stderr):
        assert "opened by rank 0" in output
        assert "opened by rank 1" not in output
    opened = [line.split() for line in (folder / "opened").read_text().splitlines()]
    for expected_rank in range(size):  # a trial, a shadow and an instrumented pass of two jobs
        pids = [
            pid for rank, count, pid in opened if (rank, count) == (str(expected_rank), str(size))
        ]
        assert len(pids) == 2 * (1 + 1 + 1)
    assert len({pid for *_, pid in opened}) == len(opened)


@pytest.mark.heavy
def test_help_and_config_are_printed_by_rank_0_only(tmp_path):
    for arguments, text in [
        (("--cfg", "job"), "batch_size: 64"),
        (("--help",), "which data loading loop is fastest"),
    ]:
        first, second = run_two_ranks(*arguments, cwd=tmp_path)
        assert first.returncode == 0
        assert text in first.stdout
        assert succeeded_silently(second)
    assert list(tmp_path.iterdir()) == []


STARTED = {"nproc_per_node=3": "has started 2", "nproc_per_node=1": "has started 2"}
REJECTED = {
    "loader=np_mmap": "loader=np_mmap: there is no such option",
    "trials=0": "trials=0: allowed: auto, or a whole number from 1 on",
    "isolation=inline": "launcher.isolation=inline: allowed: forkserver, spawn",
    **{
        f"launcher=torchrun launcher.{name}": f"launcher.{name}: torchrun {reason}; leave it out"
        for name, reason in STARTED.items()
    },
}


@pytest.mark.heavy
@pytest.mark.parametrize("overrides", REJECTED)
def test_wrong_value_under_torchrun_is_reported_by_rank_0_only(tmp_path, overrides):
    first, second = run_two_ranks(*QUICK, *overrides.split(), cwd=tmp_path)
    assert first.returncode == 1
    assert first.stdout == ""
    assert first.stderr.startswith(REJECTED[overrides])
    assert first.stderr.count("\n") == 1
    assert (second.returncode, second.stdout, second.stderr) == (1, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_hydra_launcher_is_rejected_under_torchrun(tmp_path):
    require_library("hydra_plugins.hydra_joblib_launcher")
    arguments = ("-m", "seed=0,1", "hydra/launcher=joblib", "allow_concurrent=true")
    first, _ = run_two_ranks(*QUICK, *arguments, cwd=tmp_path)
    assert first.returncode == 1
    assert "hydra/launcher=joblib: the processes of torchrun run one job at a time" in first.stderr
    assert list(tmp_path.iterdir()) == []


INVALID_LAUNCHERS = {
    "launcher=torchrun launcher.nproc_per_node=0": "launcher.nproc_per_node=0: ",
    "launcher=torchrun isolation=inline": "launcher.isolation=inline: ",
    "launcher=torchrun launcher.nnodes=2": "launcher.nnodes=2: there is no such setting; ",
    f"{' '.join(TWO)} launcher.backend=nccl device=cpu": (
        "unsupported: launcher.backend=nccl needs CUDA devices, device is cpu"
    ),
}


@pytest.mark.parametrize("overrides", INVALID_LAUNCHERS)
def test_invalid_launcher_settings_are_rejected_in_one_line(tmp_path, overrides):
    process = run_fastloop(*QUICK, *overrides.split(), cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.startswith(INVALID_LAUNCHERS[overrides])
    assert process.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_incomplete_torchrun_environment_is_rejected(tmp_path):
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    first, second = (
        run_fastloop(*QUICK, cwd=tmp_path, RANK=number, **variables) for number in "01"
    )
    assert (first.returncode, second.returncode) == (1, 1)
    for each in (first, second):  # without torchrun nobody else would tell the second one's user
        assert each.stderr.startswith("WORLD_SIZE=2 without LOCAL_RANK, LOCAL_WORLD_SIZE: ")
        assert each.stderr.count("\n") == 1


def test_connect_rejects_a_server_that_is_no_torch_store():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = StoreAddress(host="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(ConnectionError, match="the listening process is not a torch store"):
            connect(taken, within_s=1)
    with pytest.raises(
        ConnectionError, match=f"{taken.port}: Connection refused; gave up after 0.5 s"
    ):
        connect(taken, within_s=0.5)


def test_host_store_listens_on_loopback_only():
    store = host_store()
    (address,) = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections()
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == store.port
    ]
    assert address == "127.0.0.1"


FAILURES = {
    "Raises": "ValueError: no such column: x (rank 1)",
    "RaisesFirst": "ValueError: no such column: x (rank 0)",
    "Killed": "ChildProcessError: the trial's process ended without a result, killed by SIGKILL",
    "KilledFirst": "ChildProcessError: the trial's process ended without a result, killed by",
    "KilledInAStep": "ChildProcessError: the trial's process ended without a result, killed by",
    "Leaves": "ChildProcessError: the trial's process ended without a result, exit status 7",
    "Fills": "out of memory: MemoryError (rank 1)",
    "LosesItsServer": "ConnectionError: the server is gone (rank 1)",
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "start", ["by itself", pytest.param("as torchrun", marks=pytest.mark.nightly)]
)
def test_failed_rank_fails_its_job_and_other_jobs_continue(folder, start):
    loaders = ",".join(f"mine.{name}" for name in (*FAILURES, "Noisy"))
    arguments = ("-m", f"loader._target_={loaders}", "benchmark=training", *PLAIN)
    leftovers = existing_files()
    if start == "by itself":
        process = run_fastloop(*TWO, *arguments, cwd=folder)
    else:
        process, second = run_two_ranks(*arguments, cwd=folder)
        assert succeeded_silently(second)
    assert process.returncode == 1
    results_by_loader = {result.loader: result for result in results(folder)}
    assert results_by_loader.pop("mine.Noisy").status == "FINISHED"
    for name, reason in FAILURES.items():
        result = results_by_loader[f"mine.{name}"]
        assert (result.status, result.trials) == ("FAILED", [])
        # the kernel's count of out-of-memory kills may also rise because of a concurrent test
        prefixes = (reason, "out of memory: the kernel killed") if "killed" in reason else reason
        assert result.status_reason.startswith(prefixes)
        assert f"(rank {0 if name.endswith('First') else 1})" in result.status_reason
    assert re.search(
        r"^rank 1:\nTraceback (.|\n)*?\nValueError: no such column: x$", process.stderr, re.M
    )
    assert re.search(
        r"^rank 0:\nTraceback (.|\n)*?\nValueError: no such column: x$", process.stderr, re.M
    )
    assert "a last word" in process.stderr  # printed by rank 1
    assert_no_files_are_left(leftovers)


@pytest.mark.heavy
@pytest.mark.nightly
def test_timeout_names_ranks_that_hang_or_stopped(folder):
    loaders = "loader._target_=mine.Hangs,mine.Stops,mine.Noisy"
    process = run_fastloop(*TWO, "-m", loaders, *QUICK, "trial_timeout_s=20", cwd=folder)
    assert process.returncode == 1
    hangs, noisy, stops = sorted(results(folder), key=lambda result: result.loader)
    assert noisy.status == "FINISHED"
    assert (hangs.status, stops.status) == ("FAILED", "FAILED")
    waits = r"timeout: no result after 20 s: rank 0 in \w+ \(distributed_c10d.py:\d+\), rank 1 "
    assert re.fullmatch(waits + r"in end \(mine.py:\d+\)", hangs.status_reason)
    assert re.fullmatch(waits + "did not report its stack", stops.status_reason)
    assert re.search(r"^rank 1:\n.*(.|\n)*?mine.py\", line \d+ in end$", process.stderr, re.M)


@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGKILL,
        *(pytest.param(each, marks=pytest.mark.heavy) for each in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_ended_command_ends_all_its_ranks(tmp_path, database, sign):
    leftovers = existing_files()
    arguments = (*TWO, *QUICK, "trials=1000", "tracker=mlflow")
    command = start_fastloop(*arguments, cwd=tmp_path)
    command.wait_until(lambda: any(trial_starts(tmp_path)))
    ranks = command.process.children(recursive=True)
    command.process.send_signal(sign)
    process = command.wait()
    assert psutil.wait_procs(ranks, timeout=120)[1] == []
    (result,) = results(tmp_path)
    assert result.trials
    if sign == signal.SIGKILL:  # multiprocessing leaves its temporary folder behind
        assert_no_files_are_left(leftovers, ignored="pymp-")
        return
    assert_no_files_are_left(leftovers)
    assert process.returncode == 128 + sign
    lines = process.stderr.splitlines()
    # The signal may come after a trial is written, and before its line is printed.
    told = ", from one trial: traversal "
    assert all(line.startswith("round ") or told in line for line in lines[1:-1])
    assert "finished trials are kept in " in lines[-1]
    assert (result.status, result.status_reason) == ("KILLED", f"SystemExit: {128 + sign}")
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


def ranks_of_agent(agent: psutil.Process) -> dict[str, psutil.Process]:
    """The processes that the agent has started, by rank."""
    return {child.environ()["RANK"]: child for child in agent.children()}


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("target", "sign"),
    [("agent", signal.SIGINT), ("1", signal.SIGKILL)],  # test_nodes.py kills agents
)
def test_end_of_torchrun_or_of_a_follower_ends_all_ranks(tmp_path, target, sign):
    temporary = Path(tempfile.mkdtemp())  # sockets have short paths
    arguments = ("--nproc_per_node=2", *MODULE, *QUICK, "trials=1000")
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = fork_server.start(TORCHRUN, arguments, tmp_path, environment)
    command.wait_until(lambda: any(trial_starts(tmp_path)))
    agent = command.process
    processes = agent.children(recursive=True)
    ({"agent": agent} | ranks_of_agent(agent))[target].send_signal(sign)
    ended = command.wait()
    assert psutil.wait_procs(processes, timeout=120)[1] == []
    assert ended.returncode != 0
    (result,) = results(tmp_path)
    assert result.trials
    lost = "ConnectionError: process 1 of 2, on "  # noticed before torchrun sends its signal
    endings = {"KILLED": "SystemExit: 1", "FAILED": lost}
    assert result.status_reason.startswith(endings[result.status])
    assert "fastloop/" not in ended.stderr  # no traceback of fastloop
    allowed = ["torchelastic_", "fastloop-measures", "torchinductor"]
    allowed += ["pymp-"] if target == "1" else []
    leftovers = [
        path.name for path in temporary.iterdir() if not path.name.startswith(tuple(allowed))
    ]
    assert leftovers == []


@pytest.fixture(scope="module")
def sizes_sweep(tmp_path_factory) -> Path:
    """A sweep over numbers of ranks, killed after four trials and resumed."""
    folder = tmp_path_factory.mktemp("sizes")
    sizes_sweep = ("launcher=torchrun", "launcher.nproc_per_node=1,2,3", "trials=3")
    arguments = ("-m", *QUICK, *sizes_sweep)
    command = start_fastloop(*arguments, cwd=folder)
    command.wait_until(lambda: sum(map(len, trial_starts(folder))) >= 4)
    command.process.kill()
    command.wait()
    shutil.copytree(folder, folder / "before")
    process = run_fastloop(*arguments, "resume=last", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.heavy
def test_numbers_of_ranks_are_compared_in_rounds_of_one_sweep(sizes_sweep):
    sweep_results = results(sizes_sweep)
    assert [num_ranks(result) for result in sweep_results] == [1, 2, 3]
    names = {f"raw mydataset nproc_per_node={size}" for size in (1, 2, 3)}
    assert {result.name for result in sweep_results} == names
    # the interrupted round is incomplete before and after the kill
    assert all({*result.rounds[index]} == names for result in sweep_results for index in (0, -1))
    assert len({result.tags["config_hash"] for result in sweep_results}) == 3
    assert len({result.key for result in sweep_results}) == 3


@pytest.mark.heavy
def test_resumed_sweep_keeps_the_trials_of_all_ranks(sizes_sweep):
    before, after = trial_starts(sizes_sweep / "before"), trial_starts(sizes_sweep)
    assert [len(starts) for starts in after] == [3, 3, 3]
    assert sum(map(len, before)) >= 4
    assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))


@pytest.mark.heavy
def test_launcher_single_under_torchrun_runs_one_process(tmp_path):
    first, second = run_two_ranks(
        "-m", "launcher=single,torchrun", *QUICK, "trials=2", cwd=tmp_path
    )
    assert first.returncode == 0, first.stderr
    assert succeeded_silently(second)
    assert [num_ranks(result) for result in results(tmp_path)] == [1, 2]
    first, second = run_two_ranks("launcher=single", *QUICK, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert succeeded_silently(second)
    assert num_ranks(results(tmp_path)[-1]) == 1


THREE_RANKS = TorchrunLauncher(nproc_per_node=3, backend="gloo", isolation="forkserver")


def meet(failing_rank=None):
    barrier()
    if rank() == failing_rank:
        raise ValueError(f"rank {failing_rank} is at fault")
    barrier()
    return rank(), world_size(), os.getpid()


def open_resources() -> tuple[int, int, int]:
    """Numbers of open files, listening ports and threads of this process."""
    process = psutil.Process()
    listening = [
        connection
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    return process.num_fds(), len(listening), threading.active_count()


@pytest.mark.heavy
def test_each_call_creates_a_process_group_and_leaks_nothing():
    pids = set()
    THREE_RANKS.call_ranks(RankTask(function=meet))
    resources = open_resources()
    for failing_rank in (None, 0, None, 2, None, None):
        if failing_rank is None:
            values = [answer.value for answer in THREE_RANKS.call_ranks(RankTask(function=meet))]
            assert [value[:2] for value in values] == [(0, 3), (1, 3), (2, 3)]
            pids |= {value[2] for value in values}
        else:
            with pytest.raises(
                JobFailed, match=rf"^ValueError: rank {failing_rank} .* \(rank {failing_rank}\)$"
            ):
                THREE_RANKS.call_ranks(RankTask(function=meet, args=(failing_rank,)))
    assert len(pids) == 4 * 3
    assert open_resources() == resources
