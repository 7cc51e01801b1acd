"""The words of a torchrun command: the number of its ranks, and the script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = {"torchrun", "torch.distributed.run"}
"""The command, and the module that is the same."""
SWITCHES = {
    *("-h", "--help", "--standalone", "-m", "--module", "--no-python", "--run-path"),
    "--virtual-local-rank",
}
"""torchrun's options without a value; each other one has it in the same or the next word."""
MODULE = {"-m", "--module"}
PROCESSES, NODES = "--nproc-per-node", "--nnodes"
OF_ENVIRONMENT = {PROCESSES: "PET_NPROC_PER_NODE", NODES: "PET_NNODES"}
"""Variables from which torchrun takes the option if the command does not give it."""


@dataclass(frozen=True)
class TorchrunWords:
    """A torchrun command."""

    processes: str
    """Number of processes of each node, as given: perhaps `gpu`."""
    nodes: str
    """Number of nodes, as given: perhaps the least and the greatest one, 1:2."""
    script: list[str]
    """[-m] <script> [its arguments]; empty: there is none."""

    @property
    def is_single(self) -> bool:
        """True if there is surely one rank."""
        return self.processes == "1" and self.nodes in ("1", "1:1")


def read_torchrun(words: Sequence[str]) -> TorchrunWords | None:
    """The torchrun command that the words are; None for any other command."""
    is_module = words[:1] == ["-m"]
    name = "".join(words[1:2]) if is_module else Path("".join(words[:1])).name
    if name not in NAMES:
        return None
    rest = [*words[2 if is_module else 1 :]]
    given = {option: os.environ.get(name, "1") for option, name in OF_ENVIRONMENT.items()}
    runs_module = False
    # torchrun takes its options with - as with _ between words.
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        option = option.replace("_", "-")
        if option == "--":
            break
        runs_module = runs_module or option in MODULE
        if option in SWITCHES:
            continue
        # The value may be attached to an option of one letter, as in -t3.
        if not equals and (option.startswith("--") or len(option) == 2):
            value = rest.pop(0) if rest else ""
        given[option] = value
    script = ["-m", *rest] if runs_module and rest else rest
    return TorchrunWords(given[PROCESSES], given[NODES], script)
