"""Several nodes do one job together: in network namespaces of one machine, and over loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import warm
from commands import QUICK, results, runs

pytestmark = pytest.mark.slow
PORT = 29400
BIN = Path(sys.executable).parent
NAMED = "noted.Noted"
NOTED = """
import os
import torch

class Noted:
    '''Notes in which network whoever is that reads it.'''
    def __len__(self):
        return 203

    def __getitem__(self, index):
        with open("readers", "a") as file:
            print(os.readlink("/proc/self/ns/net"), os.getpid(), file=file)
        return torch.full((5, 3), float(index)), index % 10
"""


@dataclass(frozen=True)
class Nodes:
    """Two of them."""

    inside: tuple[tuple[str, ...], ...]
    """What starts a process on each."""
    host: str
    """The first one's address, for both."""
    port: int

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory) -> Iterator[Nodes]:
    """Each with its own interface and address, and the same name, which no address belongs to; the
    first one is known by another, which on itself, as on Debian, means itself alone."""
    names = [f"fastloop-{os.getpid()}-{number}" for number in range(2)]
    link = f"link add node0 netns {names[0]} type veth peer name node1 netns {names[1]}"
    steps = [*(f"netns add {name}" for name in names), link]
    for number, name in enumerate(names):
        steps += [f"-n {name} addr add 10.77.0.{number + 1}/24 dev node{number}"]
        steps += [f"-n {name} link set {device} up" for device in ("lo", f"node{number}")]
    try:
        for step in steps:
            subprocess.run(["ip", *step.split()], check=True, capture_output=True, text=True)
        inside = []
        for name, address in zip(names, ("127.0.1.1", "10.77.0.1"), strict=True):
            hosts = tmp_path_factory.mktemp("etc") / "hosts"
            hosts.write_text(f"127.0.0.1 localhost\n{address} first\n")
            shell = f'mount --bind {hosts} /etc/hosts && exec "$@"'
            inside.append(("ip", "netns", "exec", name, "sh", "-c", shell, "sh"))
        yield Nodes(inside=tuple(inside), host="first", port=PORT)
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"no network namespaces here: {getattr(why, 'stderr', '') or why}")
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def loopback() -> Nodes:
    with socket.create_server(("127.0.0.2", 0)) as free:
        return Nodes(inside=((), ()), host="127.0.0.2", port=free.getsockname()[1])


@pytest.fixture(params=["namespaces", "loopback"])
def nodes(request) -> Nodes:
    return request.getfixturevalue(request.param)


def begun(
    nodes: Nodes, number: int, *arguments: str, cwd: Path, **environment: str
) -> warm.Command:
    """The command on that node, told of the other by launcher=torchrun."""
    launcher = [
        "launcher=torchrun",
        "launcher.nnodes=2",
        f"launcher.rdzv_endpoint={nodes.endpoint}",
    ]
    own = (*launcher, f"launcher.node_rank={number}", *arguments)
    inside = nodes.inside[number]
    return warm.begun("fastloop.run", own, cwd, os.environ | environment, inside)


def torchrun(
    nodes: Nodes, form: Sequence[Sequence[str]], *arguments: str, cwd: Path
) -> list[subprocess.CompletedProcess]:
    """Its finished agents, one a node; each is started as that form says."""
    commands = []
    for inside, own in zip(nodes.inside, form, strict=True):
        agent = [*inside, str(BIN / "torchrun"), "--nnodes=2", "--nproc_per_node=1", *own]
        command = [*agent, "-m", "fastloop.run", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        commands.append(subprocess.Popen(command, cwd=cwd, text=True, **pipes))
    said = [command.communicate() for command in commands]
    return [
        subprocess.CompletedProcess(one.args, one.returncode, *told)
        for one, told in zip(commands, said, strict=True)
    ]


def test_two_agents_of_torchrun_that_meet_run_one_job_over_one_store(
    namespaces, tmp_path, database
):
    meeting = ["--rdzv_backend=c10d", "--rdzv_id=1", f"--rdzv_endpoint={namespaces.endpoint}"]
    own = [["--rdzv_conf=is_host=1", "--local_addr=10.77.0.1"]]
    own += [["--rdzv_conf=is_host=0", "--local_addr=10.77.0.2"]]  # asking would look up its name
    form = [[*meeting, *one] for one in own]
    done = torchrun(namespaces, form, *noted(tmp_path), "tracker=mlflow", cwd=tmp_path)
    assert_one_job_was_done(done, tmp_path)
    (run,) = runs(tmp_path)
    assert (run.info.status, run.data.params["world_size"]) == ("FINISHED", "2")
    assert run.data.params["launcher"] == "torchrun"


def test_two_agents_of_torchrun_by_the_address_of_the_first(loopback, tmp_path):
    address = [f"--master_addr={loopback.host}", f"--master_port={loopback.port}"]
    form = [[*address, f"--node_rank={number}"] for number in range(2)]
    assert_one_job_was_done(torchrun(loopback, form, *noted(tmp_path), cwd=tmp_path), tmp_path)


def test_the_same_command_on_each_node(nodes, tmp_path):
    commands = [begun(nodes, number, *noted(tmp_path), cwd=tmp_path) for number in (1, 0)]
    assert_one_job_was_done([command.finished() for command in commands], tmp_path)


def noted(folder: Path) -> tuple[str, ...]:
    """A job whose samples are read only to be written to the store."""
    (folder / "noted.py").write_text(NOTED)
    return (*QUICK[:5], f"dataset._target_={NAMED}", "loader=np_memmap", "trial_timeout_s=100")


def assert_one_job_was_done(done: Sequence[subprocess.CompletedProcess], folder: Path) -> None:
    """One spoke, one silent; one folder, one result of two ranks, and a store written once."""
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    silent, speaking = sorted(done, key=lambda one: len(one.stdout))
    assert silent.stdout == ""
    assert speaking.stdout.count("files:") == 1
    (result,) = results(folder)
    assert result.params["world_size"] == 2
    assert len(result.trials[0].benchmarks["traversal"].rank_seconds) == 2
    assert result.trials[0].benchmarks["traversal"].samples == 203
    stores = folder / "outputs" / "stores"
    assert len([path for path in stores.iterdir() if path.is_dir()]) == 2  # it, and its reference
    networks = {line.split()[0] for line in (folder / "readers").read_text().splitlines()}
    assert len(networks) == 1
    assert [path.name for path in folder.glob("outputs/20*/*/*")] == ["0"]


def test_a_node_without_the_shared_folder_is_told(namespaces, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    second = begun(namespaces, 1, *noted(tmp_path), cwd=tmp_path)
    mount = ["mount", "-t", "tmpfs", "none", str(outputs)]  # on that node alone
    subprocess.run(["nsenter", "--mount", "--target", str(second.pid), *mount], check=True)
    first = begun(namespaces, 0, *noted(tmp_path), cwd=tmp_path).finished()
    assert second.finished().returncode == 0
    assert first.returncode == 1
    (result,) = results(tmp_path)
    assert result.status == "FAILED"
    told, _, hint = result.status_reason.partition(": not on node ")
    assert told.removeprefix("BadData: ") in map(str, (outputs / "stores").iterdir())
    assert hint.startswith(os.uname().nodename)
    assert hint.endswith("see FASTLOOP_OUTPUTS (rank 1)")
    assert told in first.stderr


FOREVER = (*QUICK, "trials=1000", "loader=np_memmap")
LOST = "ConnectionError: process 1 of 2, on "


@pytest.mark.parametrize(
    ("whose", "sign", "statuses", "reason"),
    [
        (1, signal.SIGKILL, (1, -9), LOST),
        (1, signal.SIGINT, (1, 130), LOST),
        (0, signal.SIGINT, (130, 0), "SystemExit"),
        (0, signal.SIGKILL, (-9, 1), ""),
    ],
)
def test_one_nodes_end_is_soon_the_others_and_finished_trials_are_kept(
    loopback, tmp_path, whose, sign, statuses, reason
):
    commands = [begun(loopback, number, *FOREVER, cwd=tmp_path) for number in range(2)]
    while not any(result.trials for result in results(tmp_path)):
        time.sleep(0.1)
    ours = [psutil.Process(command.pid) for command in commands]
    below = [child for one in ours for child in one.children(recursive=True)]
    ours[whose].send_signal(sign)
    done = [command.finished() for command in commands]
    assert tuple(one.returncode for one in done) == statuses
    assert psutil.wait_procs(below, timeout=30)[1] == []
    (result,) = results(tmp_path)
    assert result.trials
    assert result.status_reason.startswith(reason)
    if reason == LOST:
        assert LOST in done[0].stdout
    if statuses[1] == 1:
        lost = f"process 1: lost the first of 2 ({loopback.endpoint})\n"
        assert done[1].stderr == lost
