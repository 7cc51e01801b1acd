"""What does each way of moving a batch to the device cost, above the copy itself?

Every placement moves trees of 5 and of 500 tensors, small and large, in interleaved rounds. "bare"
is `[leaf.to(device) for leaf in leaves]` over the same tensors in a flat list: what is above it is
the placement's own. `direct` takes flat batches only, so it gets the tuple of the same tensors.

    python experiments/placements.py [device] [rounds]

Time a batch is the median over rounds with its 95 % interval, the device waited for; overhead a
leaf is that above bare, and the ratio is paired by round. On a CPU nothing is copied (`.to` gives
the same tensor; torch.save and torch.load do copy), so that overhead is all there is, and the
device "meta", to which no bytes go either, is measured beside it. On CUDA each setting is measured
(pageable or pinned, blocking or not), with the share of the pinned copy's measured bandwidth. Last,
a network steps on what was placed: the waiting time is what a step takes longer than the same step
on a batch that is at its place already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

import optree
import torch
from placements_rows import Case, Row, row_of, table

from fastloop.spans import bandwidth, now_ns, seconds_between, synchronize
from fastloop.types import Unsupported

CLASSES = {
    "direct": "Direct",
    "recursive": "Recursive",
    "pytree": "Pytree",
    "optree": "Optree",
    "tensordict": "AsTensorDict",
    "dm_tree": "DmTree",
    "map_location": "MapLocation",
    "jax": "Jax",
}
SAMPLES = 64
TREES = {"5 small": (5, 2), "500 small": (500, 2), "5 large": (5, 16_384), "500 large": (500, 256)}
"""Leaves, and float32 a sample of each: 512 bytes; 4 MiB and 64 KiB, 20 and 31 MiB in all."""
FEATURES = 1000
"""A step reads as many of the batch's numbers a sample, or all where there are fewer."""
ROUNDS, STEP_ROUNDS = 15, 9
BUDGET_S = 0.003
"""Of one measurement, where a batch takes less."""


def tree_of(count: int, width: int, pinned: bool) -> Any:
    """004's kind of tree: a dict of a dict, a tensor and a list, a quarter of the tensors each."""
    made = [torch.rand(SAMPLES, width) for _ in range(count)]
    made = [one.pin_memory() for one in made] if pinned else made
    quarter = max(1, count // 4)
    inner = {f"image{number}": one for number, one in enumerate(made[:quarter])}
    fields = {f"field{number}": one for number, one in enumerate(made[quarter : 2 * quarter])}
    rest = made[2 * quarter :]
    return {"im": inner, **fields, "pim": rest[::2], "pair": tuple(rest[1::2])}


def placements(device: torch.device, non_blocking: bool) -> tuple[dict[str, Any], list[str]]:
    """Each that can be had, bound, and why the others can't."""
    found: dict[str, Any] = {
        "bare": lambda leaves: [leaf.to(device, non_blocking=non_blocking) for leaf in leaves]
    }
    refused = []
    for name, kind in CLASSES.items():
        option = getattr(import_module(f"fastloop.placements.{name}"), kind)
        try:
            found[name] = option(non_blocking=non_blocking).to(device)
        except Unsupported as why:
            refused.append(f"{name} to {device}: unsupported: {why}")
    return found, refused


def cases(device: torch.device) -> tuple[list[Case], list[str]]:
    """Every tree in every setting, and what is unsupported."""
    settings = {"": (False, False)}
    if device.type == "cuda":
        settings = {
            "pageable": (False, False),
            "pinned": (True, False),
            "pinned, non_blocking": (True, True),
        }
    found, refused = [], []
    for setting, (pinned, non_blocking) in settings.items():
        places, why = placements(device, non_blocking)
        refused += [f"{one} [{setting}]" if setting else one for one in why]
        for tree, (count, width) in TREES.items():
            batch = tree_of(count, width, pinned)
            case = Case(
                device=device,
                tree=tree,
                setting=setting,
                batch=batch,
                leaves=optree.tree_leaves(batch),
                places=dict(places),
            )
            refused += without_the_failing(case)
            found.append(case)
    return found, refused


def without_the_failing(case: Case) -> list[str]:
    """Take out what can't place this batch, so that the others have their figures; why it can't."""
    failed = []
    for name, place in [*case.places.items()]:
        try:
            place(case.given(name))
            synchronize(case.device)
        except Exception as error:  # of whatever library moves it
            said = (str(error).splitlines() or [""])[0]
            failed.append(f"{name}, {case.tree}, {case.setting}: {type(error).__name__}: {said}")
            del case.places[name]
    return failed


def measure(device: torch.device, rounds: int = ROUNDS) -> tuple[list[Row], list[str]]:
    """A row for each case and placement, and what is unsupported, in a line each."""
    found, refused = cases(device)
    limit = pinned_bytes_per_s(device) if device.type == "cuda" else None
    rows = []
    for case in found:
        seconds = interleaved(case, rounds, placing(case))
        steps = {}
        if device.type != "meta":
            steps = interleaved(case, min(rounds, STEP_ROUNDS), stepping(case))
        rows += [row_of(case, name, seconds, limit, steps.get(name, [])) for name in case.places]
    return rows, refused


Timed = Callable[[str, int], tuple[float, ...]]
"""Seconds of so many calls of the placement of that name, a call."""


def interleaved(case: Case, rounds: int, timed: Timed) -> dict[str, list[tuple[float, ...]]]:
    """What `timed` gives for each placement, once a round, in another order in every round."""
    names = list(case.places)
    calls = {name: calls_for(name, timed) for name in names}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    order = Random(0)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            found[name].append(timed(name, calls[name]))
    return found


def calls_for(name: str, timed: Timed) -> int:
    """How often to call, so that it takes the budget; after two calls to warm up."""
    timed(name, 2)
    return max(1, min(1000, int(BUDGET_S / timed(name, 1)[0])))


def placing(case: Case) -> Timed:
    """Seconds a batch; the device has each before the next is asked for."""

    def timed(name: str, calls: int) -> tuple[float, ...]:
        place, batch, device = case.places[name], case.given(name), case.device

        def one() -> None:
            place(batch)
            synchronize(device)

        return (seconds_of(device, one, calls),)

    return timed


def stepping(case: Case) -> Timed:
    """Seconds a step with a batch that is placed, and with one that is at its place already; the
    device is waited for after the last step only, as a training loop does."""
    step = step_of(case)
    there = {name: place(case.given(name)) for name, place in case.places.items()}

    def timed(name: str, calls: int) -> tuple[float, ...]:
        place, batch, resident = case.places[name], case.given(name), there[name]
        without = seconds_of(case.device, lambda: step(resident), calls)
        return seconds_of(case.device, lambda: step(place(batch)), calls), without

    return timed


def seconds_of(device: torch.device, call: Callable[[], None], calls: int) -> float:
    """Seconds a call, until the device has done all of it."""
    synchronize(device)
    start = now_ns()
    for _ in range(calls):
        call()
    synchronize(device)
    return seconds_between(start, now_ns()) / calls


def step_of(case: Case) -> Callable[[Any], None]:
    """ToyNet's layers and SGD on some numbers of every leaf, as tables of features are trained."""
    width = max(1, min(case.leaves[0].shape[1], FEATURES // len(case.leaves)))
    model = torch.nn.Sequential(
        torch.nn.Linear(width * len(case.leaves), 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    ).to(case.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    targets = torch.zeros(SAMPLES, dtype=torch.int64, device=case.device)

    def step(batch: Any) -> None:
        columns = [leaf[:, :width] for leaf in optree.tree_leaves(batch)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.cat(columns, dim=1)), targets).backward()
        optimizer.step()

    return step


def pinned_bytes_per_s(device: torch.device) -> float:
    """This machine's copy from pinned memory, 64 MiB at a time."""
    host = torch.ones(64 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=device)

    def copy() -> int:
        there.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, 250_000_000)


def main(device: str, rounds: int) -> None:
    targets = [torch.device(device)] + ([torch.device("meta")] if device == "cpu" else [])
    for target in targets:
        rows, refused = measure(target, rounds)
        print(table(rows), *refused, "", sep="\n", flush=True)


if __name__ == "__main__":
    default = "cuda" if torch.cuda.is_available() else "cpu"
    main(
        sys.argv[1] if len(sys.argv) > 1 else default,
        int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS,
    )
