"""Fit the default space of tuning to the device, the data and the budget.

A space has the values to try for each setting; the default one is in conf/tune.yaml. `fit_space`
combines the other functions. A space that the user has given is tried as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import WORKERS_FOR_WAITING
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job import Job
from fastloop.tune.race_time import SHORT_S

LIKELY_VALUES: Mapping[str, Sequence[str]] = {
    "loader": ("fastloop", "numpy_loop", "python_loop"),
    "torch_threads": ("null", "1"),
    "num_workers": ("0", "2"),
    "persistent_workers": ("false", "true"),
}
"""Values to try with a short budget, besides the user's own loader. Chosen by hand: in the
recordings of experiments/tune, FastLoader, one torch thread and the right number of workers gain
most. The loops over rows in memory were not among these recordings. In a grid of loaders,
numpy_loop was the fastest on digits and on samples of 1 ms."""
Space = Mapping[str, Sequence[str]]
"""For each setting, by name, the texts name=value of its values."""


def fit_space(
    space: Space, present: Job, own_loader: str, *, is_short: bool, waits: bool
) -> tuple[Space, list[str]]:
    """Choose the values of the default space to try; returns them with notes on values left out.

    own_loader: name of the present job's loader. is_short: True if the budget has no time for a
    large space. waits: True if samples wait rather than compute.
    """
    space, notes = drop_settings_without_effect(space, present)
    if is_short:
        space, others = narrow_space(space, own_loader)
        notes += others
    if waits:
        return add_workers(space), notes
    space, others = cap_workers(space)
    return space, [*notes, *others]


def drop_settings_without_effect(space: Space, present: Job) -> tuple[Space, list[str]]:
    """Drop settings that have no effect on this device, machine or data.

    Returns the rest, and a line with the reason for each dropped setting.
    """
    device = resolve_device(present.device)
    left_out: dict[str, str] = {}
    if device.type == "cpu":
        left_out["placement"] = "no effect on the CPU, as batches stay in its memory"
    if not torch.accelerator.is_available():
        left_out["pin_memory"] = "no effect without an accelerator"
    if present.decoder is None:
        left_out["decoder"] = "the dataset has no encoded images"
    if usable_cores() == 1:
        left_out["torch_threads"] = "there is one core"
    kept = {name: texts for name, texts in space.items() if name not in left_out}
    return kept, [f"{name}: {reason}" for name, reason in left_out.items() if name in space]


def cap_workers(space: Space) -> tuple[Space, list[str]]:
    """Drop numbers of workers above twice the number of cores; returns the rest and a line on them.

    More workers only compete for the cores, unless samples wait.
    """
    cores = usable_cores()
    texts = space.get("num_workers", ())
    more = [text for text in texts if int(text.partition("=")[2]) > 2 * cores]
    if not more:
        return space, []
    kept = [text for text in texts if text not in more]
    reason = f"more than two workers for each of {cores} {'core' if cores == 1 else 'cores'}"
    return {**space, "num_workers": kept}, [f"{' '.join(more)}: {reason}"]


def add_workers(space: Space) -> Space:
    """Add larger numbers of workers (WORKERS_FOR_WAITING), for samples that wait for I/O."""
    if "num_workers" not in space:
        return space
    more = [f"num_workers={count}" for count in WORKERS_FOR_WAITING]
    return {**space, "num_workers": [*dict.fromkeys((*space["num_workers"], *more))]}


def narrow_space(space: Space, own_loader: str) -> tuple[Space, list[str]]:
    """Reduce the space to LIKELY_VALUES; returns the rest and a note on the dropped values.

    own_loader: the name of the user's loader, which stays in the space.
    """
    # The user's own loader is kept, because other settings of it may help.
    likely = {**LIKELY_VALUES, "loader": (*LIKELY_VALUES["loader"], own_loader)}
    narrow = {
        name: [text for text in texts if text.partition("=")[2].lower() in likely[name]]
        for name, texts in space.items()
        if name in likely
    }
    kept = {name: texts for name, texts in narrow.items() if texts}
    shown = "; ".join(" ".join(texts) for texts in kept.values())
    return kept, [f"others than {shown}: the budget is below {SHORT_S:.0f} s"]
