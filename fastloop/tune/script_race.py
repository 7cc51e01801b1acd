"""Race a script's DataLoader against the same loader with other settings, in the script's process.

script_process.py calls `race_in_script` when the script's loop asks for its first batch. In place
of each step of the script, the race keeps a core busy for the time of a step. If there is an
accelerator, the race pauses for this time instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastloop.core.parts import Part
from fastloop.core.spans import cpu_ns, now_ns, pause, seconds_between
from fastloop.core.text import wrap
from fastloop.core.types import Invalid
from fastloop.data.digest import leaves_of
from fastloop.explain.attach.change_notes import collect_notes
from fastloop.explain.attach.edit_call import settings_beside
from fastloop.explain.attach.import_hook import DATALOADER_MODULE
from fastloop.explain.explained_job import FEWEST_BATCHES
from fastloop.fastloader import FastLoader
from fastloop.fastloader.loader_tuning import MAX_WAITING_THREADS
from fastloop.trial.job_settings import MIN_WINDOW_S
from fastloop.tune.budget import Spending, TuneBudget
from fastloop.tune.expected_cost import divide_waits
from fastloop.tune.loop_trials import LoopTrials
from fastloop.tune.loop_tuning import race_loaders
from fastloop.tune.part_reader import EpochPart
from fastloop.tune.race_time import SmallBudgetError, loop_race_s
from fastloop.tune.script_plan import ScriptOutcome, ScriptPlan

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

    from fastloop.explain.attach.findings import LoopFindings

TRIALS_OF_UNCONFIRMED_RACE = 2
"""Trials of the shortest race here: one of the present configuration and one of another. It
confirms nothing, but says more than a refusal after the script has taken most of a small budget."""
MATRIX_ROWS = 64
"""Rows of a matrix that is multiplied by itself to keep a core busy, for some microseconds."""


def race_in_script(
    plan: ScriptPlan, loader: DataLoader[Any], arguments: dict[str, Any], step_path: Path
) -> ScriptOutcome:
    """Race a DataLoader, made with these arguments, against the configurations of the plan.

    step_path: the file for the name of the configuration that is being measured. If there is too
    little time for a race, the outcome has only the seconds that a race needs.
    """
    left_s = seconds_between(now_ns(), plan.end_ns)
    notes: dict[str, None] = {}
    make_loader = _loader_maker(loader, arguments, notes)
    # The first batch comes from a new loader, because the workers of the script's own loader, if
    # there were any, have been ended.
    has_tensors = _has_tensors(make_loader(**next(iter(plan.settings.values()))))
    trials = LoopTrials(
        make_loader=make_loader,
        settings=plan.settings,
        step=_busy_step(plan.step_s),
        device=torch.device("cpu"),
        same_data=has_tensors,
        counts_batches=not has_tensors,
        min_window_s=MIN_WINDOW_S,
        budget_s=left_s,
        fewest_trials=TRIALS_OF_UNCONFIRMED_RACE,
    )
    try:
        spending = Spending(budget=TuneBudget(seconds=left_s))
        expected = expect_costs(plan.settings, plan.pass_s) if plan.samples_wait else None
        tuned = race_loaders(trials, spending, lambda name: _tell(step_path, name), expected)
    except SmallBudgetError as error:
        return ScriptOutcome(needed_s=error.allowed_s)
    best = tuned.race.winner if tuned.is_faster else tuned.race.present
    sentences = [f"{note}." for note in notes] if plan.settings[best]["fastloader"] else []
    text = "\n".join([tuned.without_code(), *wrap(sentences)])
    return ScriptOutcome(text=text, best=best, is_faster=tuned.is_faster)


def forecast_race_s(found: LoopFindings) -> float:
    """Approximate seconds of the shortest race of the loop's DataLoader, from the observed run."""
    passes = max(1, found.passes)
    start_s = found.seconds * found.shares[Part.START_UP].value / passes
    # If passes have had only a few batches, the length of an epoch is not known: the observed run
    # may have been stopped within its first pass. Then a race of whole epochs is expected, which
    # takes longer.
    part = EpochPart(
        samples=FEWEST_BATCHES,
        batches=FEWEST_BATCHES,
        is_whole=found.batches / passes < FEWEST_BATCHES,
        seconds=start_s + FEWEST_BATCHES * found.seconds / found.batches,
        fixed_s=start_s,
    )
    return loop_race_s(part, MIN_WINDOW_S, TRIALS_OF_UNCONFIRMED_RACE)


def expect_costs(settings: Mapping[str, Mapping[str, Any]], pass_s: float) -> dict[str, float]:
    """Expect the cost of each configuration relative to others, by its name, if samples wait.

    Each worker waits for its own sample, and so does each thread of a FastLoader without workers.

    pass_s: seconds of a pass of the observed run. Workers that start in each pass prolong it. If
    the script has workers, a pass without them takes longer than pass_s, so the start of workers
    counts for more than it should.
    """
    costs = {}
    for name, each in settings.items():
        workers = each["num_workers"]
        if workers:
            costs[name] = divide_waits(1.0, workers, each["persistent_workers"], pass_s)
        else:
            costs[name] = 1 / MAX_WAITING_THREADS if each["fastloader"] else 1.0
    return costs


def _has_tensors(loader: Iterable[Any]) -> bool:
    """True if the first batch has tensors of one length, so that samples can be compared.

    False if there is no batch.
    """
    try:
        for batch in loader:
            leaves_of(batch)
            return True
    except Invalid:
        pass
    return False


def _loader_maker(
    loader: DataLoader[Any], arguments: dict[str, Any], notes: dict[str, None]
) -> Callable[..., Any]:
    """A function that makes a loader of the same class with other settings, or a FastLoader.

    arguments: those of the script's call. notes: gets the sentences on arguments that FastLoader
    drops.
    """
    base = next(each for each in type(loader).__mro__ if each.__module__ == DATALOADER_MODULE)

    def make(fastloader: bool, **settings: Any) -> Any:
        changed = {**arguments, **settings}
        del changed["self"]
        changed |= settings_beside(settings, changed)
        if fastloader:
            with collect_notes(notes):
                return FastLoader(**changed)
        # The loader may be of a class derived from DataLoader, with attributes of its own and an
        # __init__ that takes other arguments. So it is copied, and only DataLoader's __init__ runs
        # again. With the attribute that is removed here, DataLoader would refuse other settings.
        made = copy.copy(loader)
        vars(made).pop("_DataLoader__initialized", None)
        base.__init__(made, **changed)
        return made

    return make


def _busy_step(seconds: float) -> Callable[[Any], None]:
    """A function that takes as long as a step of the script, and keeps one core busy meanwhile."""
    # With an accelerator, the script's step leaves the cores to the loader, so this one only
    # pauses.
    if torch.accelerator.is_available():
        return lambda _: pause(seconds)
    matrix = torch.rand(MATRIX_ROWS, MATRIX_ROWS)

    def step(_: Any) -> None:
        # The thread's CPU time counts, so a step takes longer if workers take its core.
        until_ns = cpu_ns() + int(1e9 * seconds)
        while cpu_ns() < until_ns:
            torch.mm(matrix, matrix)

    return step


def _tell(path: Path, name: str) -> None:
    path.write_text(name, encoding="utf-8")
