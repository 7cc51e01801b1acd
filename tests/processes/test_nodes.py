"""Jobs on several nodes: network namespaces of one machine, or processes over loopback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from commands import QUICK, results, runs

pytestmark = pytest.mark.slow
PORT = 29400
BIN = Path(sys.executable).parent
READER_DATASET = """
import os
import torch

class ReaderDataset:
    '''Records the network and process of each read.'''
    def __len__(self):
        return 203

    def __getitem__(self, index):
        with open("readers", "a") as file:
            print(os.readlink("/proc/self/ns/net"), os.getpid(), file=file)
        return torch.full((5, 3), float(index)), index % 10
"""


@dataclass(frozen=True)
class Nodes:
    """Two nodes."""

    inside: tuple[tuple[str, ...], ...]
    """Command prefix that starts a process on each node."""
    host: str
    """Address of the first node, as both see it."""
    port: int

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory) -> Iterator[Nodes]:
    """Two namespaces with an interface and an address each, but one host name that has no address.

    The name `first` is that of the first node; there, as on Debian, it is a loopback address.
    """
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
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def loopback() -> Nodes:
    with socket.create_server(("127.0.0.2", 0)) as free:
        return Nodes(inside=((), ()), host="127.0.0.2", port=free.getsockname()[1])


def start_agents(
    nodes: Nodes, flags: Sequence[Sequence[str]], *arguments: str, cwd: Path
) -> list[psutil.Popen]:
    """Start one agent per node, each with its own flags."""
    commands = []
    for inside, node_flags in zip(nodes.inside, flags, strict=True):
        agent = [*inside, str(BIN / "torchrun"), "--nnodes=2", "--nproc_per_node=1", *node_flags]
        command = [*agent, "-m", "fastloop.run", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        commands.append(psutil.Popen(command, cwd=cwd, text=True, **pipes))
    return commands


def wait_for_agents(commands: Sequence[psutil.Popen]) -> list[subprocess.CompletedProcess]:
    output = [command.communicate() for command in commands]
    return [
        subprocess.CompletedProcess(command.args, command.returncode, *streams)
        for command, streams in zip(commands, output, strict=True)
    ]


def rendezvous_flags(nodes: Nodes) -> list[list[str]]:
    """Flags of the agents with a rendezvous endpoint."""
    common = ["--rdzv_backend=c10d", "--rdzv_id=1", f"--rdzv_endpoint={nodes.endpoint}"]
    # without local_addr, torchrun would look up the host name
    per_node = [
        ["--rdzv_conf=is_host=1", "--local_addr=10.77.0.1"],
        ["--rdzv_conf=is_host=0", "--local_addr=10.77.0.2"],
    ]
    return [[*common, *flags] for flags in per_node]


def master_address_flags(nodes: Nodes) -> list[list[str]]:
    """Flags of the agents with the address of the first node."""
    address = [f"--master_addr={nodes.host}", f"--master_port={nodes.port}"]
    return [[*address, f"--node_rank={number}"] for number in range(2)]


@pytest.mark.heavy
def test_agents_with_a_rendezvous_endpoint_run_one_job(namespaces, tmp_path, database):
    arguments = (*job_arguments(tmp_path), "tracker=mlflow")
    agents = wait_for_agents(
        start_agents(namespaces, rendezvous_flags(namespaces), *arguments, cwd=tmp_path)
    )
    assert_one_job_ran(agents, tmp_path)
    (run,) = runs(tmp_path)
    assert (run.info.status, run.data.params["world_size"]) == ("FINISHED", "2")
    assert run.data.params["launcher"] == "torchrun"


def job_arguments(folder: Path) -> tuple[str, ...]:
    """Arguments of a job that reads the samples only to write the store."""
    (folder / "mine.py").write_text(READER_DATASET)
    return (
        *QUICK[:5],
        "dataset._target_=mine.ReaderDataset",
        "loader=np_memmap",
        "min_window_s=0",
        "trial_timeout_s=300",
    )


def assert_one_job_ran(agents: Sequence[subprocess.CompletedProcess], folder: Path) -> None:
    """Assert that one agent printed, and that there is one result of two ranks and one store."""
    assert [agent.returncode for agent in agents] == [0, 0], [agent.stderr for agent in agents]
    silent, printing = sorted(agents, key=lambda agent: len(agent.stdout))
    assert silent.stdout == ""
    assert printing.stdout.count("files:") == 1
    (result,) = results(folder)
    assert result.params["world_size"] == 2
    assert len(result.trials[0].benchmarks["traversal"].rank_seconds) == 2
    assert result.trials[0].benchmarks["traversal"].samples == 203
    stores = folder / "outputs" / "stores"
    folders = [path for path in stores.iterdir() if path.is_dir()]
    assert len(folders) == 2  # the store and the reference data
    networks = {line.split()[0] for line in (folder / "readers").read_text().splitlines()}
    assert len(networks) == 1
    assert [path.name for path in folder.glob("outputs/20*/*/*")] == ["0"]


@pytest.mark.heavy
def test_node_without_the_shared_folder_is_named(namespaces, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    first, (*netns, shell, name) = namespaces.inside
    # an empty file system hides the folder on the second node
    hidden = shell.replace("exec", f"mount -t tmpfs none {outputs} && exec")
    nodes = replace(namespaces, inside=(first, (*netns, hidden, name)))
    agent, _ = wait_for_agents(
        start_agents(nodes, rendezvous_flags(nodes), *job_arguments(tmp_path), cwd=tmp_path)
    )
    assert agent.returncode == 1
    (result,) = results(tmp_path)
    assert result.status == "FAILED"
    path, _, hint = result.status_reason.partition(": not on node ")
    assert path.removeprefix("BadData: ") in map(str, (outputs / "stores").iterdir())
    assert hint.startswith(os.uname().nodename)
    assert hint.endswith("see FASTLOOP_OUTPUTS (rank 1)")
    assert path in agent.stderr


@pytest.mark.heavy
def test_nodes_with_different_command_lines_are_rejected(loopback, tmp_path):
    flags = master_address_flags(loopback)
    arguments = (*QUICK, "trial_timeout_s=300")
    first = start_agents(replace(loopback, inside=((),)), flags[:1], *arguments, cwd=tmp_path)
    others = (*arguments, "batch_size=7")
    second = start_agents(replace(loopback, inside=((),)), flags[1:], *others, cwd=tmp_path)
    agent, _ = wait_for_agents([*first, *second])
    assert agent.returncode == 1
    assert re.search(
        r"rank 1 on \S+ has composed different jobs: command lines or conf/ differ", agent.stderr
    )
    assert results(tmp_path) == []


LONG_JOB = (*QUICK, "trials=1000", "loader=np_memmap")


@pytest.mark.heavy
@pytest.mark.parametrize("killed", [0, 1])
def test_end_of_one_agent_ends_the_job_and_keeps_finished_trials(loopback, tmp_path, killed):
    commands = start_agents(loopback, master_address_flags(loopback), *LONG_JOB, cwd=tmp_path)
    while not any(result.trials for result in results(tmp_path)):
        assert all(command.poll() is None for command in commands), wait_for_agents(commands)
        time.sleep(0.1)
    children = [child for command in commands for child in command.children(recursive=True)]
    commands[killed].send_signal(signal.SIGKILL)
    agents = wait_for_agents(commands)
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert all(agent.returncode for agent in agents)
    (result,) = results(tmp_path)
    assert result.trials
    assert result.status in ("KILLED", "FAILED")


LEAVING_LOADER = """
import subprocess
from torch.utils.data import DataLoader

def make_loader(dataset, sampler, batch_size):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return DataLoader(dataset, batch_size, sampler=sampler)
"""


@pytest.mark.heavy
def test_agents_with_a_master_address_name_what_their_trials_left_running(loopback, tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING_LOADER)
    arguments = (*QUICK, "loader._target_=leaving.make_loader", "trial_timeout_s=300")
    first, second = wait_for_agents(
        start_agents(loopback, master_address_flags(loopback), *arguments, cwd=tmp_path)
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (first.stdout.count("files:"), second.stdout) == (1, "")
    (result,) = results(tmp_path)  # of one job
    assert len(result.trials[0].benchmarks["traversal"].rank_seconds) == 2
    assert "left running" in first.stdout  # rank 0's is a note of the result
    assert re.search(r"rank 1 left running, ended: sleep 600 \(pid \d+\)", second.stderr)
