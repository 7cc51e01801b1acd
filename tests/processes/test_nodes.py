"""Jobs on several nodes: network namespaces of one machine, or processes over loopback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import fork_server
import psutil
import pytest
from commands import QUICK, results, runs
from rank_commands import rank_variables, run_two_ranks

from fastloop.processes.store_messages import host_store

pytestmark = pytest.mark.slow
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


Inside = tuple[str, ...]
"""Prefix of commands that start on one of the nodes."""


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory) -> Iterator[list[Inside]]:
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
        yield inside
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def hidden_outputs(tmp_path) -> Inside:
    """Prefix of commands for which the folder of outputs is an empty one, as on another node."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    mount = f'mount -t tmpfs none {outputs} && exec "$@"'
    inside = ("unshare", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("hiding a folder needs root")
    return inside


def agent_arguments(flags: Sequence[str], *arguments: str) -> list[str]:
    return ["--nnodes=2", "--nproc_per_node=1", *flags, "-m", "fastloop.run", *arguments]


RENDEZVOUS = ("--rdzv_backend=c10d", "--rdzv_id=1", "--rdzv_endpoint=first:29400")
# without local_addr, torchrun would look up the host name
RENDEZVOUS_FLAGS = [
    (*RENDEZVOUS, "--rdzv_conf=is_host=1", "--local_addr=10.77.0.1"),
    (*RENDEZVOUS, "--rdzv_conf=is_host=0", "--local_addr=10.77.0.2"),
]
"""Flags of the agents with a rendezvous endpoint."""


def master_address_flags() -> list[list[str]]:
    """Flags of the agents with the address of the first node."""
    with socket.create_server(("127.0.0.2", 0)) as free:
        address = ["--master_addr=127.0.0.2", f"--master_port={free.getsockname()[1]}"]
    return [[*address, f"--node_rank={number}"] for number in range(2)]


@pytest.mark.heavy
def test_agents_with_a_rendezvous_endpoint_run_one_job(namespaces, tmp_path, database):
    arguments = (*job_arguments(tmp_path), "tracker=mlflow")
    agents = [
        subprocess.Popen(
            [*inside, str(BIN / "torchrun"), *agent_arguments(flags, *arguments)],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for inside, flags in zip(namespaces, RENDEZVOUS_FLAGS, strict=True)
    ]
    output = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], output
    assert_one_job_ran(output, tmp_path)
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


def assert_one_job_ran(output: Sequence[tuple[str, str]], folder: Path) -> None:
    """Assert that one agent printed, and that there is one result of two ranks and one store."""
    silent, printing = sorted(stdout for stdout, _ in output)
    assert silent == ""
    assert printing.count("files:") == 1
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
@pytest.mark.nightly
def test_node_without_the_shared_folder_is_named(tmp_path, hidden_outputs):
    agent = host_store()
    ranks = [
        subprocess.Popen(
            [*inside, sys.executable, "-m", "fastloop.run", *job_arguments(tmp_path)],
            cwd=tmp_path,
            env=os.environ | rank_variables(rank, 1, agent.port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, inside in enumerate(((), hidden_outputs))
    ]
    stderr_text, _ = [rank.communicate()[1] for rank in ranks]
    assert ranks[0].returncode == 1
    (result,) = results(tmp_path)
    assert result.status == "FAILED"
    path, _, hint = result.status_reason.partition(": not on node ")
    stores = tmp_path / "outputs" / "stores"
    assert path.removeprefix("BadData: ") in map(str, stores.iterdir())
    assert hint.startswith(os.uname().nodename)
    assert hint.endswith("see FASTLOOP_OUTPUTS (rank 1)")
    assert path in stderr_text


@pytest.mark.heavy
def test_nodes_with_different_command_lines_are_rejected(tmp_path):
    arguments = (*QUICK, "trial_timeout_s=300")
    others = (*arguments, "batch_size=7")
    rank, _ = run_two_ranks(*arguments, cwd=tmp_path, others=others, ranks_per_node=1)
    assert rank.returncode == 1
    assert re.search(
        r"rank 1 on \S+ has composed different jobs: command lines or conf/ differ", rank.stderr
    )
    assert results(tmp_path) == []


LONG_JOB = (*QUICK, "trials=1000", "loader=np_memmap")


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("killed", [0, 1])
def test_end_of_one_agent_ends_the_job_and_keeps_finished_trials(tmp_path, killed):
    commands = [
        fork_server.start(
            "torch.distributed.run",
            (*agent_arguments(flags, *LONG_JOB),),
            tmp_path,
            dict(os.environ),
        )
        for flags in master_address_flags()
    ]
    commands[0].wait_until(lambda: any(result.trials for result in results(tmp_path)))
    children = [child for each in commands for child in each.process.children(recursive=True)]
    commands[killed].process.send_signal(signal.SIGKILL)
    agents = [command.wait() for command in commands]
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
@pytest.mark.nightly
def test_every_node_names_what_its_trials_left_running(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING_LOADER)
    arguments = (*QUICK, "loader._target_=leaving.make_loader", "trial_timeout_s=300")
    first, second = run_two_ranks(*arguments, cwd=tmp_path, ranks_per_node=1)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (first.stdout.count("files:"), second.stdout) == (1, "")
    (result,) = results(tmp_path)  # of one job
    assert len(result.trials[0].benchmarks["traversal"].rank_seconds) == 2
    assert "left running" in first.stdout  # rank 0's is a note of the result
    assert re.search(r"rank 1 left running, ended: sleep 600 \(pid \d+\)", second.stderr)
