"""Read the environment variables that torchrun sets in each process that it starts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache

from fastloop.core.types import UsageError

VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets besides WORLD_SIZE."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun sets this variable to True if its agents host the store."""


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Address of a torch store, and the prefix of this command's keys in it."""

    host: str
    port: int
    prefix: str = "fastloop"
    """Prefix of this command's keys in the store."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class TorchrunProcess:
    """A process started by torchrun; rank 0 leads the others."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: StoreAddress
    """Address of the store that torchrun's agents share."""


@cache
def torchrun_process() -> TorchrunProcess | None:
    """The TorchrunProcess of this process; None without torchrun, or with a single process.

    Raises UsageError if a variable is missing or not a number.
    """
    env = os.environ
    world_size = _number("WORLD_SIZE", env.get("WORLD_SIZE") or "1")
    # A single process needs no group, whoever has started it.
    if world_size == 1:
        return None
    if missing := [name for name in VARIABLES if name not in env]:
        raise UsageError(
            f"WORLD_SIZE={world_size} without {', '.join(missing)}: torchrun sets all of them; "
            "without torchrun, unset WORLD_SIZE"
        )
    if env.get(AGENT_STORE) != "True":
        raise UsageError(
            f"{AGENT_STORE}={env.get(AGENT_STORE, '')}: ranks need torchrun's store; "
            "start them by torchrun, without TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
        )
    # A restarted worker group shares the store with the failed one: its keys need another prefix.
    attempt = f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return TorchrunProcess(
        rank=_number("RANK", env["RANK"]),
        world_size=world_size,
        local_rank=_number("LOCAL_RANK", env["LOCAL_RANK"]),
        local_world_size=_number("LOCAL_WORLD_SIZE", env["LOCAL_WORLD_SIZE"]),
        address=StoreAddress(
            host=env["MASTER_ADDR"],
            port=_number("MASTER_PORT", env["MASTER_PORT"]),
            prefix=f"fastloop/{attempt}",
        ),
    )


def _number(name: str, value: str) -> int:
    """Parse a variable's value; raises UsageError if the value is not an integer."""
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name}={value}: allowed: a number, as torchrun sets it") from None


def make_rank_environment() -> dict[str, str]:
    """Make the variables that torchrun sets for the only rank, with a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    numbers = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT")
    counts = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    return {
        **dict.fromkeys(numbers, "0"),
        **dict.fromkeys(counts, "1"),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        # There is no agent with a store, so the rank makes its own.
        AGENT_STORE: "False",
    }
