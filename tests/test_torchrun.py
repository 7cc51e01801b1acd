"""Several processes a trial: one job however they are started, a truthful end however they end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import warm
from commands import QUICK, fastloop, results, runs
from options import MYDATASET

from fastloop.launchers.torchrun import Torchrun
from fastloop.ranks import rank, together, world_size
from fastloop.types import JobFailed
from fastloop.wire import Address, client, hosted

pytestmark = pytest.mark.slow
TWO = ("launcher=torchrun", "launcher.nproc_per_node=2")
PLAIN = ("epochs=1", "trials=1", "tracker=none", "report=false", *MYDATASET)
BIN = Path(sys.executable).parent
OWN = """
import os
import signal
import sys
import time
from contextlib import contextmanager

from fastloop.loaders.raw import Raw


class Noisy(Raw):
    '''Says and notes who opens it.'''

    @contextmanager
    def open(self, prepared, plan):
        for stream in (sys.stdout, sys.stderr):
            print(f"opened by rank {plan.rank}", file=stream)
        with open("opened", "a") as file:
            print(plan.rank, plan.world_size, os.getpid(), file=file)
        with Raw.open(self, prepared, plan) as epochs:
            yield epochs


class Raises(Raw):
    '''On one rank, as it is opened.'''

    who = 1

    @contextmanager
    def open(self, prepared, plan):
        if plan.rank == self.who:
            print("a last word")
            self.end()
        with Raw.open(self, prepared, plan) as epochs:
            yield epochs

    def end(self):
        raise ValueError("no such column: x")


class RaisesFirst(Raises):
    who = 0


class Killed(Raises):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class KilledFirst(Killed):
    who = 0


class KilledInAStep(Killed):
    @contextmanager
    def open(self, prepared, plan):
        def epochs_of_it(epoch):
            for number, batch in enumerate(epochs(epoch)):
                if (plan.rank, epoch, number) == (1, 0, 1):
                    self.end()
                yield batch

        with Raw.open(self, prepared, plan) as epochs:
            yield epochs_of_it


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
    """A working folder with loaders of one's own."""
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def torchrun(*form: str) -> list[str]:
    return [str(BIN / "torchrun"), *form]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def of_two(*arguments: str, cwd: Path, **environment: str) -> list[subprocess.CompletedProcess]:
    """The finished processes of a command, as torchrun starts them, but for its agent."""
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    told |= {"MASTER_PORT": str(free_port())}
    warm.ready(2)  # where the first ends before the second begins nobody tells it so
    begun = [
        warm.begun(
            "fastloop.run",
            arguments,
            cwd,
            os.environ | told | {"RANK": number, "LOCAL_RANK": number} | environment,
        )
        for number in "01"
    ]
    return [command.finished() for command in begun]


def ended_silently(done: subprocess.CompletedProcess) -> bool:
    return (done.returncode, done.stdout, done.stderr) == (0, "", "")


def left_behind() -> set[str]:
    """What lies where a process that is gone may leave something."""
    folders = [Path("/dev/shm"), Path(os.environ["TMPDIR"])]
    found = {str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()}
    alive = {path for path in found if _is_of_who_lives(path)}
    return {path for path in found - alive if not re.search("fastloop-measures|inductor", path)}


def _is_of_who_lives(path: str) -> bool:
    """Whether it is shared memory of a process that is there: of another test, perhaps."""
    owner = re.search(r"/torch_(\d+)_", path)
    return owner is not None and psutil.pid_exists(int(owner[1]))


def ranks_of(result) -> int:
    """How many have run each trial of it."""
    trials = [trial.benchmarks["traversal"] for trial in result.trials]
    (count,) = {len(one.rank_seconds) or 1 for one in trials}
    assert count == result.params["world_size"]
    return count


FORMS = {
    "by itself": ([sys.executable, "-m", "fastloop.run", *TWO], 2),
    "torchrun": ([*torchrun("--nproc_per_node=2"), "-m", "fastloop.run"], 2),
    "standalone": (
        [*torchrun("--standalone", "--nproc-per-node", "2"), "-m", "fastloop.run", TWO[0]],
        2,
    ),
    "python -m": (
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "-m", "fastloop.run"],
        1,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_command_of_the_first_rank_alone(folder, database, form):
    command, size = FORMS[form]
    sweep = ["loader._target_=own.Noisy", *QUICK[:4], "trials=2", "tracker=mlflow", *MYDATASET]
    done = subprocess.run(
        [*command, *sweep, "-m", "batch_size=16,32", "report=false"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("files:  ") == done.stdout.count("charts: ") == 1
    assert done.stdout.count("mean (std) of the trials") == 1
    assert len(list(folder.glob("outputs/20*/*"))) == 1
    assert [ranks_of(result) for result in results(folder)] == [size, size]
    found = runs(folder)
    assert [run.info.status for run in found] == ["FINISHED", "FINISHED"]
    assert {run.data.params["world_size"] for run in found} == {str(size)}
    for said in (done.stdout, done.stderr):
        assert "opened by rank 0" in said
        assert "opened by rank 1" not in said
    opened = [line.split() for line in (folder / "opened").read_text().splitlines()]
    for number in range(size):  # two trials and a look of each of two jobs, and none by itself
        own = [pid for who, count, pid in opened if (who, count) == (str(number), str(size))]
        assert len(own) == 2 * (2 + 1)
    assert len({pid for *_, pid in opened}) == len(opened)


def test_what_measures_nothing_is_said_by_the_first_rank_alone(tmp_path):
    for arguments, said in [
        (("--cfg", "job"), "batch_size: 64"),
        (("--help",), "which data loading loop is fastest"),
    ]:
        first, second = of_two(*arguments, cwd=tmp_path)
        assert first.returncode == 0
        assert said in first.stdout
        assert ended_silently(second)
    assert list(tmp_path.iterdir()) == []


HAS = {
    "nproc_per_node=3": "has started 2",
    "nproc_per_node=1": "has started 2",
    "nnodes=2": "has started 1",
    "node_rank=1": "numbers them",
    "rdzv_endpoint=a:1": "has its own",
}
REFUSED = {
    "loader=np_mmap": "loader=np_mmap: there is no such option",
    "trials=0": "trials=0: Input should be greater than 0",
    "isolation=inline": "launcher.isolation=inline: Input should be 'forkserver' or 'spawn'",
    **{
        f"launcher=torchrun launcher.{given}": f"launcher.{given}: torchrun {has}; leave it out"
        for given, has in HAS.items()
    },
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_wrong_value_under_torchrun_is_refused_by_the_first_rank_alone(tmp_path, wrong):
    first, second = of_two(*QUICK, *wrong.split(), cwd=tmp_path)
    assert first.returncode == 1
    assert first.stdout == ""
    assert first.stderr.startswith(REFUSED[wrong])
    assert first.stderr.count("\n") == 1
    assert ended_silently(second)
    assert list(tmp_path.iterdir()) == []


NODES = "launcher=torchrun launcher.nnodes=2"
UNFIT = {
    "launcher=torchrun launcher.nproc_per_node=0": "launcher.nproc_per_node=0: ",
    "launcher=torchrun isolation=inline": "launcher.isolation=inline: ",
    NODES: "launcher.nnodes=2: launcher.rdzv_endpoint=<host>:<port> says where",
    "launcher=torchrun launcher.node_rank=1": "launcher.node_rank=1: allowed are 0 to nnodes - 1",
    f"{NODES} launcher.rdzv_endpoint=a:b": "launcher.rdzv_endpoint=a:b: allowed is <host>:<port>",
    f"{NODES} launcher.rdzv_endpoint=a:1,a:2 -m": "a sweep is run by the same nodes",
    f"{NODES} launcher.rdzv_endpoint=no.such.name.invalid:29400": (
        "launcher.rdzv_endpoint=no.such.name.invalid:29400: "
    ),
    f"{' '.join(TWO)} launcher.backend=nccl device=cpu": (
        "unsupported: launcher.backend=nccl needs CUDA devices, device is cpu"
    ),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_launcher_that_can_not_be_is_refused_in_one_line(tmp_path, unfit):
    done = fastloop(*QUICK, *unfit.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(UNFIT[unfit])
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_is_torchruns_in_part_is_refused(tmp_path):
    part = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    first, second = (fastloop(*QUICK, cwd=tmp_path, RANK=number, **part) for number in "01")
    assert (first.returncode, second.returncode) == (1, 1)
    assert first.stderr.startswith("WORLD_SIZE=2 without LOCAL_RANK, LOCAL_WORLD_SIZE: ")
    assert first.stderr.count("\n") == 1
    assert second.stderr == ""


def test_who_listens_where_processes_are_to_meet_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        endpoint = f"launcher.rdzv_endpoint=127.0.0.1:{taken}"
        done = fastloop(*QUICK, *NODES.split(), endpoint, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"{endpoint}: something listens at that port already\n"
        with pytest.raises(ConnectionError, match="what listens there is no store of torch"):
            client(Address(host="127.0.0.1", port=taken), within_s=1)
    with pytest.raises(ConnectionError, match=f"{taken}: Connection refused; tried for 0.5 s"):
        client(Address(host="127.0.0.1", port=taken), within_s=0.5)
    store = hosted(Address(host="127.0.0.1", port=0))
    with pytest.raises(ConnectionError, match="something listens"):
        hosted(Address(host="127.0.0.1", port=store.port))


ENDED = {
    "Raises": "ValueError: no such column: x (rank 1)",
    "RaisesFirst": "ValueError: no such column: x (rank 0)",
    "Killed": "ChildProcessError: the trial's process ended without a result, killed by SIGKILL",
    "KilledFirst": "ChildProcessError: the trial's process ended without a result, killed by",
    "KilledInAStep": "ChildProcessError: the trial's process ended without a result, killed by",
    "Leaves": "ChildProcessError: the trial's process ended without a result, exit status 7",
    "Fills": "out of memory: MemoryError (rank 1)",
    "LosesItsServer": "ConnectionError: the server is gone (rank 1)",
}


@pytest.mark.parametrize("start", ["by itself", "as torchrun"])
def test_a_rank_that_ends_badly_fails_its_job_with_its_reason_and_the_others_go_on(folder, start):
    loaders = ",".join(f"own.{name}" for name in (*ENDED, "Noisy"))
    arguments = ("-m", f"loader._target_={loaders}", "benchmark=training", *PLAIN)
    before = left_behind()
    if start == "by itself":
        done = fastloop(*TWO, *arguments, cwd=folder)
    else:
        done, second = of_two(*arguments, cwd=folder)
        assert ended_silently(second)
    assert done.returncode == 1
    found = {result.loader: result for result in results(folder)}
    assert found.pop("own.Noisy").status == "FINISHED"
    for name, reason in ENDED.items():
        result = found[f"own.{name}"]
        assert (result.status, result.trials) == ("FAILED", [])
        # the kernel counts what it ends for want of memory, and another test may provoke that
        ends = (reason, "out of memory: the kernel killed") if "killed" in reason else reason
        assert result.status_reason.startswith(ends)
        assert f"(rank {0 if name.endswith('First') else 1})" in result.status_reason
    assert re.search(
        r"^rank 1:\nTraceback (.|\n)*?\nValueError: no such column: x$", done.stderr, re.M
    )
    assert re.search(
        r"^rank 0:\nTraceback (.|\n)*?\nValueError: no such column: x$", done.stderr, re.M
    )
    assert "a last word" in done.stderr  # of the silent rank
    assert left_behind() <= before


def test_ranks_that_hang_or_stop_are_named_when_time_is_over(folder):
    loaders = "loader._target_=own.Hangs,own.Stops,own.Noisy"
    done = fastloop(*TWO, "-m", loaders, *QUICK, "trial_timeout_s=10", cwd=folder)
    assert done.returncode == 1
    hangs, noisy, stops = sorted(results(folder), key=lambda result: result.loader)
    assert noisy.status == "FINISHED"
    assert (hangs.status, stops.status) == ("FAILED", "FAILED")
    waits = r"timeout: no result after 10 s: rank 0 in \w+ \(distributed_c10d.py:\d+\), rank 1 "
    assert re.fullmatch(waits + r"in end \(own.py:\d+\)", hangs.status_reason)
    assert re.fullmatch(waits + "does not tell where it is", stops.status_reason)
    assert re.search(r"^rank 1:\n.*(.|\n)*?own.py\", line \d+ in end$", done.stderr, re.M)


def trials_of(folder: Path) -> list[list[int]]:
    """Start of each finished trial, a list a job."""
    return [[trial.started_ms for trial in result.trials] for result in results(folder)]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_ranks_end_with_their_command(tmp_path, database, sign):
    before = left_behind()
    arguments = (*TWO, *QUICK, "trials=1000", "tracker=mlflow")
    command = warm.begun("fastloop.run", arguments, tmp_path, dict(os.environ))
    while not any(trials_of(tmp_path)):
        assert psutil.pid_exists(command.pid), command.finished()
        time.sleep(0.05)
    process = psutil.Process(command.pid)
    below = process.children(recursive=True)
    process.send_signal(sign)
    done = command.finished()
    assert psutil.wait_procs(below, timeout=30)[1] == []
    (result,) = results(tmp_path)
    assert result.trials
    left = {path for path in left_behind() - before if "pymp-" not in path}
    if sign == signal.SIGKILL:  # a folder of multiprocessing's own is left, which only it knows
        assert left == set()
        return
    assert left_behind() <= before
    assert done.returncode == 128 + sign
    assert done.stderr.count("\n") == 1
    assert (result.status, result.status_reason) == ("KILLED", f"SystemExit: {128 + sign}")
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]


def below_torchrun(agent: psutil.Popen) -> dict[str, psutil.Process]:
    """The processes that it has started, by rank."""
    return {child.environ()["RANK"]: child for child in agent.children()}


@pytest.mark.parametrize(
    ("whose", "sign"),
    [("agent", signal.SIGINT), ("agent", signal.SIGKILL), ("1", signal.SIGKILL)],
)
def test_the_end_of_torchrun_or_of_a_follower_is_that_of_all(tmp_path, whose, sign):
    temporary = Path(tempfile.mkdtemp())  # sockets have short paths
    agent = psutil.Popen(
        [*torchrun("--nproc_per_node=2"), "-m", "fastloop.run", *QUICK, "trials=1000"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not any(trials_of(tmp_path)):
        assert agent.poll() is None, agent.communicate()
        time.sleep(0.1)
    below = agent.children(recursive=True)
    ({"agent": agent} | below_torchrun(agent))[whose].send_signal(sign)
    said = agent.communicate()[1]
    assert psutil.wait_procs(below, timeout=30)[1] == []
    assert agent.returncode != 0
    (result,) = results(tmp_path)
    assert result.trials
    lost = "ConnectionError: process 1 of 2, on "  # heard of before torchrun's own signal comes
    endings = {"KILLED": "SystemExit: 1", "FAILED": lost}
    assert result.status_reason.startswith(endings[result.status])
    assert "fastloop/" not in said  # no traceback of ours
    own = ["torchelastic_", "fastloop-measures", "torchinductor"]
    own += ["pymp-"] if whose == "1" else []
    left = [path.name for path in temporary.iterdir() if not path.name.startswith(tuple(own))]
    assert left == []


@pytest.fixture(scope="module")
def sizes(tmp_path_factory) -> Path:
    """A sweep over numbers of ranks that was killed with four trials done, and resumed."""
    folder = tmp_path_factory.mktemp("sizes")
    sizes = ("launcher=torchrun", "launcher.nproc_per_node=1,2,3", "trials=3")
    arguments = ("-m", *QUICK, *sizes)
    command = warm.begun("fastloop.run", arguments, folder, dict(os.environ))
    while sum(map(len, trials_of(folder))) < 4:
        time.sleep(0.02)
    os.kill(command.pid, signal.SIGKILL)
    command.finished()
    shutil.copytree(folder, folder / "before")
    done = fastloop(*arguments, "resume=last", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_numbers_of_ranks_are_compared_in_rounds(sizes):
    found = results(sizes)
    assert [ranks_of(result) for result in found] == [1, 2, 3]
    names = {f"raw mydataset launcher.nproc_per_node={size}" for size in (1, 2, 3)}
    assert {result.name for result in found} == names
    # the round that the kill has cut in two has all of them in neither part
    assert all({*result.rounds[at]} == names for result in found for at in (0, -1))
    assert len({result.tags["config_hash"] for result in found}) == 3
    assert len({result.key for result in found}) == 3


def test_a_resumed_sweep_keeps_what_its_ranks_have_done(sizes):
    before, after = trials_of(sizes / "before"), trials_of(sizes)
    assert [len(one) for one in after] == [3, 3, 3]
    assert sum(map(len, before)) >= 4
    assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))


def test_one_process_alone_beside_those_of_torchrun(tmp_path):
    first, second = of_two("-m", "launcher=single,torchrun", *QUICK, "trials=2", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert ended_silently(second)
    assert [ranks_of(result) for result in results(tmp_path)] == [1, 2]
    first, second = of_two("launcher=single", *QUICK, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert ended_silently(second)
    assert ranks_of(results(tmp_path)[-1]) == 1


THREE = Torchrun(
    nproc_per_node=3,
    nnodes=1,
    node_rank=0,
    rdzv_endpoint=None,
    backend="gloo",
    isolation="forkserver",
)


def met(who=None):
    together()
    if rank() == who:
        raise ValueError(f"rank {who} is at fault")
    together()
    return rank(), world_size(), os.getpid()


def held() -> tuple[int, int, int]:
    """What this process has open: files, ports where it listens, threads."""
    process = psutil.Process()
    listening = [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    return process.num_fds(), len(listening), threading.active_count()


def test_each_call_is_a_group_of_its_own_and_none_leaves_anything_open():
    pids = set()
    THREE.call_ranks(met)
    before = held()
    for who in (None, 0, None, 2, None, None):
        if who is None:
            answers = [answer for answer, _ in THREE.call_ranks(met)]
            assert [answer[:2] for answer in answers] == [(0, 3), (1, 3), (2, 3)]
            pids |= {answer[2] for answer in answers}
        else:
            with pytest.raises(JobFailed, match=rf"^ValueError: rank {who} .* \(rank {who}\)$"):
                THREE.call_ranks(met, who)
    assert len(pids) == 4 * 3
    assert held() == before
