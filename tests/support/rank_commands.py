"""Commands as two ranks: with the variables of torchrun's agents, but without the agents."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fork_server

from fastloop.processes.store_messages import host_store

Arguments = tuple[str, ...]


def run_two_ranks(
    *arguments: str,
    cwd: Path,
    module: str = "fastloop.run",
    others: Arguments | None = None,
    ranks_per_node: int = 2,
    **more: str,
) -> list[subprocess.CompletedProcess]:
    """Run a command as two ranks; others: rank 1's arguments, more: environment variables."""
    agent = host_store()
    commands = [
        fork_server.start(
            module, each, cwd, os.environ | rank_variables(rank, ranks_per_node, agent.port) | more
        )
        for rank, each in enumerate((arguments, arguments if others is None else others))
    ]
    return [command.wait() for command in commands]


def rank_variables(rank: int, ranks_per_node: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of two ranks, where its agents' store listens on that port."""
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank % ranks_per_node,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": ranks_per_node,
        "MASTER_PORT": port,
    }
    address = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return address | {name: str(number) for name, number in numbers.items()}
