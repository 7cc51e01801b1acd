"""Race a script's DataLoader against others, in the script's process."""

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
from fastloop.explain.attach.edit_call import settings_beside
from fastloop.explain.attach.import_hook import DATALOADER_MODULE
from fastloop.explain.attach.script_patch import collect_notes
from fastloop.explain.explained_job import FEWEST_BATCHES
from fastloop.fastloader import FastLoader
from fastloop.fastloader.loader_tuning import MAX_WAITING_THREADS
from fastloop.trial.job_settings import MIN_WINDOW_S
from fastloop.tune.budget import Spending, TuneBudget
from fastloop.tune.expected_cost import divide_waits
from fastloop.tune.loop_trials import EpochPart, LoopTrials, SmallBudgetError, least_race_s
from fastloop.tune.loop_tuning import race_loaders
from fastloop.tune.script_plan import ScriptOutcome, ScriptPlan

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

    from fastloop.explain.attach.findings import LoopFindings

TRIALS_OF_UNCONFIRMED_RACE = 2
"""A race in which yours and one other run once confirms nothing, but says more than a refusal: the
script has taken most of a small budget by then."""
MATRIX_ROWS = 64
"""Rows of a matrix that is multiplied by itself to keep a core busy, for some microseconds."""


def race_in_script(
    plan: ScriptPlan, loader: DataLoader[Any], arguments: dict[str, Any], step_path: Path
) -> ScriptOutcome:
    """Race a DataLoader, made with these arguments, against others.

    step_path: the file for the name of the configuration that is being measured.
    """
    left_s = seconds_between(now_ns(), plan.end_ns)
    notes: dict[str, None] = {}
    make_loader = _loader_maker(loader, arguments, notes)
    # The first batch comes from a new loader: persistent workers of the script's loader have been
    # ended.
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
    # The observed run may have been stopped within its first pass. The length of an epoch is then
    # not known, and a race of whole epochs, which takes longer, is expected.
    part = EpochPart(
        samples=FEWEST_BATCHES,
        batches=FEWEST_BATCHES,
        is_whole=found.batches / passes < FEWEST_BATCHES,
        seconds=start_s + FEWEST_BATCHES * found.seconds / found.batches,
        fixed_s=start_s,
    )
    return least_race_s(part, MIN_WINDOW_S, TRIALS_OF_UNCONFIRMED_RACE)


def expect_costs(settings: Mapping[str, Mapping[str, Any]], pass_s: float) -> dict[str, float]:
    """Cost of each configuration relative to others if its samples wait: each worker waits for its
    own sample, and so does each thread of a FastLoader without workers.

    pass_s: seconds of a pass of the observed run, with the script's own workers; workers that start
    in each pass prolong it. If there are any, a pass without them takes longer, and the start of
    workers counts for more than it should.
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
    """True if the first batch has tensors of one length, so that samples can be compared."""
    try:
        leaves_of(next(iter(loader)))
    except Invalid:
        return False
    return True


def _loader_maker(
    loader: DataLoader[Any], arguments: dict[str, Any], notes: dict[str, None]
) -> Callable[..., Any]:
    """A function that makes a loader of the same kind with other settings.

    notes: gets the sentences on arguments that FastLoader drops.
    """
    base = next(each for each in type(loader).__mro__ if each.__module__ == DATALOADER_MODULE)

    def make(fastloader: bool, **settings: Any) -> Any:
        changed = {**arguments, **settings}
        del changed["self"]
        changed |= settings_beside(settings, changed)
        if fastloader:
            with collect_notes(notes):
                return FastLoader(**changed)
        # The loader is copied, and only the __init__ of DataLoader runs again: a derived class has
        # its own attributes, and its __init__ may take other arguments. With the attribute that
        # is removed here, DataLoader would refuse to change its settings.
        made = copy.copy(loader)
        vars(made).pop("_DataLoader__initialized", None)
        base.__init__(made, **changed)
        return made

    return make


def _busy_step(seconds: float) -> Callable[[Any], None]:
    """A step that keeps one core busy for this time, in place of the script's."""
    # A step on an accelerator leaves the cores to the loader, so this one only pauses.
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
