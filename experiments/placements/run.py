"""The cost of each way of moving a batch to the device, above the copy itself.

Every placement moves trees of 5 and of 500 tensors, small and large, in interleaved rounds. "bare"
is `[leaf.to(device) for leaf in leaves]` over the same tensors in a flat list, so the time above it
is the placement's own cost. `direct` takes only flat batches, so it gets a tuple of the same
tensors.

    python -m experiments.placements.run [device] [rounds]

The time per batch is the median over rounds with its 95 % interval, until the device has finished.
The overhead per leaf is the time above "bare"; the ratio to "bare" is paired by round. On a CPU
nothing is copied, because `.to` returns the same tensor (torch.save and torch.load do copy), so all
of the time is overhead. The device "meta", to which no bytes go either, is measured as well. On
CUDA, pageable and pinned memory are measured with blocking and non-blocking copies, and with the
share of the pinned copy's bandwidth. Finally a network steps on the batch: the waiting time is the
time by which a step takes longer than on a batch that is on the device already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import optree
import torch

from experiments.lib.copy_bandwidth import pinned_copy_bandwidth
from experiments.placements.rows import Case, PlacementTime, row_of, table
from fastloop.core.device_time import synchronize
from fastloop.core.interleave import rounds
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Unsupported

CLASSES = {
    "direct": "DirectPlacement",
    "recursive": "RecursivePlacement",
    "pytree": "PytreePlacement",
    "optree": "OptreePlacement",
    "tensordict": "TensorDictPlacement",
    "dm_tree": "DmTreePlacement",
    "map_location": "MapLocationPlacement",
    "jax": "JaxPlacement",
}
SAMPLES = 64
TREES = {"5 small": (5, 2), "500 small": (500, 2), "5 large": (5, 16_384), "500 large": (500, 256)}
"""Name of a tree -> number of leaves, and of float32 values per sample in each leaf. A leaf has 512
B in the small trees, and 4 MiB or 64 KiB in the large ones, which have 20 and 31 MiB."""
FEATURES = 1000
"""A step reads at most this many of the batch's numbers per sample."""
ROUNDS, STEP_ROUNDS = 15, 9
BUDGET_S = 0.003
"""A measurement repeats the call for this long if one call takes less."""


def tree_of(count: int, width: int, pinned: bool) -> Any:
    """A tree: a dict with a dict, tensors, a list and a tuple, a quarter of the
    tensors in each."""
    leaves = [torch.rand(SAMPLES, width) for _ in range(count)]
    leaves = [leaf.pin_memory() for leaf in leaves] if pinned else leaves
    quarter = max(1, count // 4)
    inner = {f"image{number}": leaf for number, leaf in enumerate(leaves[:quarter])}
    fields = {f"field{number}": leaf for number, leaf in enumerate(leaves[quarter : 2 * quarter])}
    rest = leaves[2 * quarter :]
    return {"im": inner, **fields, "pim": rest[::2], "pair": tuple(rest[1::2])}


def placements(device: torch.device, non_blocking: bool) -> tuple[dict[str, Any], list[str]]:
    """Name of each placement that is supported here -> its function; and the reasons for which the
    others are not."""
    supported: dict[str, Any] = {
        "bare": lambda leaves: [leaf.to(device, non_blocking=non_blocking) for leaf in leaves]
    }
    refusals = []
    for name, kind in CLASSES.items():
        option = getattr(import_module(f"fastloop.options.placement.{name}"), kind)
        try:
            supported[name] = option(non_blocking=non_blocking).to(device)
        except Unsupported as error:
            refusals.append(f"{name} to {device}: unsupported: {error}")
    return supported, refusals


def cases(device: torch.device) -> tuple[list[Case], list[str]]:
    """Every tree in every setting; and the reasons for which placements are unsupported."""
    settings = {"": (False, False)}
    if device.type == "cuda":
        settings = {
            "pageable": (False, False),
            "pinned": (True, False),
            "pinned, non_blocking": (True, True),
        }
    all_cases, refusals = [], []
    for setting, (pinned, non_blocking) in settings.items():
        supported, unsupported = placements(device, non_blocking)
        refusals += [f"{reason} [{setting}]" if setting else reason for reason in unsupported]
        for tree, (count, width) in TREES.items():
            batch = tree_of(count, width, pinned)
            case = Case(
                device=device,
                tree=tree,
                setting=setting,
                batch=batch,
                leaves=optree.tree_leaves(batch),
                placements=dict(supported),
            )
            refusals += remove_failing(case)
            all_cases.append(case)
    return all_cases, refusals


def remove_failing(case: Case) -> list[str]:
    """Remove the placements that fail with this batch, so that the others can be measured. Returns
    the reasons."""
    reasons = []
    for name, place in [*case.placements.items()]:
        try:
            place(case.input_of(name))
            synchronize(case.device)
        # Any library may have raised this.
        except Exception as error:
            message = (str(error).splitlines() or [""])[0]
            kind = type(error).__name__
            reasons.append(f"{name}, {case.tree}, {case.setting}: {kind}: {message}")
            del case.placements[name]
    return reasons


def measure(
    device: torch.device, num_rounds: int = ROUNDS
) -> tuple[list[PlacementTime], list[str]]:
    """A row for each case and placement; and a line for each unsupported one."""
    all_cases, refusals = cases(device)
    limit = pinned_copy_bandwidth(device) if device.type == "cuda" else None
    rows = []
    for case in all_cases:
        seconds = measure_in_rounds(case, num_rounds, placing(case))
        steps = {}
        if device.type != "meta":
            steps = measure_in_rounds(case, min(num_rounds, STEP_ROUNDS), stepping(case))
        rows += [
            row_of(case, name, seconds, limit, steps.get(name, [])) for name in case.placements
        ]
    return rows, refusals


Timing = Callable[[str, int], tuple[float, ...]]
"""Called with the name of a placement and a number of calls; returns seconds per call."""


def measure_in_rounds(
    case: Case, num_rounds: int, timing: Timing
) -> dict[str, list[tuple[float, ...]]]:
    """The timings of each placement, one in each round."""
    repeats = {name: count_repeats(name, timing) for name in case.placements}
    timings: dict[str, list[tuple[float, ...]]] = {name: [] for name in case.placements}
    for _, names in rounds(dict.fromkeys(case.placements, num_rounds)):
        for name in names:
            timings[name].append(timing(name, repeats[name]))
    return timings


def count_repeats(name: str, timing: Timing) -> int:
    """The number of calls that fill the budget, measured after two warm-up calls."""
    timing(name, 2)
    return max(1, min(1000, int(BUDGET_S / timing(name, 1)[0])))


def placing(case: Case) -> Timing:
    """Timing of a placement: seconds per batch. The device finishes each batch before the next is
    placed."""

    def timing(name: str, repeats: int) -> tuple[float, ...]:
        place, batch, device = case.placements[name], case.input_of(name), case.device

        def place_and_wait() -> None:
            place(batch)
            synchronize(device)

        return (seconds_of(device, place_and_wait, repeats),)

    return timing


def stepping(case: Case) -> Timing:
    """Timing of a step: seconds per step on a batch that is placed first, and on one that is on the
    device already. The device is waited for only after the last step, as in a training loop."""
    step = step_of(case)
    resident = {name: place(case.input_of(name)) for name, place in case.placements.items()}

    def timing(name: str, repeats: int) -> tuple[float, ...]:
        place, batch, batch_there = case.placements[name], case.input_of(name), resident[name]
        without = seconds_of(case.device, lambda: step(batch_there), repeats)
        return seconds_of(case.device, lambda: step(place(batch)), repeats), without

    return timing


def seconds_of(device: torch.device, call: Callable[[], None], repeats: int) -> float:
    """Seconds per call, until the device has finished all calls."""
    synchronize(device)
    start = now_ns()
    for _ in range(repeats):
        call()
    synchronize(device)
    return seconds_between(start, now_ns()) / repeats


def step_of(case: Case) -> Callable[[Any], None]:
    """A training step: ToyNet's layers and SGD on a few numbers of every leaf, as for tables of
    features."""
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


def main(device: str, num_rounds: int) -> None:
    """Measure on the device, and print the tables."""
    targets = [torch.device(device)] + ([torch.device("meta")] if device == "cpu" else [])
    for target in targets:
        rows, refusals = measure(target, num_rounds)
        print(table(rows), *refusals, "", sep="\n", flush=True)


if __name__ == "__main__":
    default = "cuda" if torch.cuda.is_available() else "cpu"
    main(
        sys.argv[1] if len(sys.argv) > 1 else default,
        int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS,
    )
