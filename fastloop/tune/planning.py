"""Plan the tuning of a job: which candidates are made, which are dropped, and which are raced.

A candidate is the present job with a change. `plan_tuning` returns the plan as a `TuneFile`, for
`fastloop tune`:

1. A first pass times batches of the present job. It shows whether samples wait.
2. default_space.py chooses the values to try, unless the user has given a space.
3. candidates.py combines the values, and drops the combinations that can't run.
4. The pilot measures the present job for the model and for forecasts of memory (pilot.py).
5. candidate_limits.py drops candidates that need too much memory, disk or time to start.
6. raced_candidates.py chooses the most promising candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fastloop.core.thread_times import slowdown_by_load
from fastloop.core.time_limits import Deadline, deadline_after
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.explain.job_facts import benchmark_name
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.tune.budget import Spending, TuneBudget
from fastloop.tune.candidate_limits import (
    Bounds,
    check_memory,
    drop_slow_starts,
    drop_unaffordable,
)
from fastloop.tune.candidates import (
    Compose,
    find_tune_candidates,
)
from fastloop.tune.default_space import (
    Space,
    fit_space,
)
from fastloop.tune.expected_cost import expect_cost
from fastloop.tune.peak_memory import forecast_peak_mib, usable_mib
from fastloop.tune.pilot import (
    FirstPass,
    Pilot,
    PilotLimits,
    SlowReadingError,
    run_pilot,
    time_first_pass,
)
from fastloop.tune.race_time import (
    EPOCH_S,
    SHORT_S,
    check_least_time,
    is_short,
    name_budget_of_share,
    name_larger_budget,
    trial_of_epoch_s,
)
from fastloop.tune.raced_candidates import choose_raced
from fastloop.tune.tune_file import TuneFile

MOST_TRIALS = 1000
"""Setting `trials` of raced jobs, an upper bound: the race decides how many trials run."""
FIRST_PASS_UNTIL = 0.5
"""Share of the budget after which the first pass of the present job is stopped: the rest of the
budget has no time for a race of jobs that take this long."""
PILOT_UNTIL = 0.4
"""Share of the budget after which the pilot starts no further measurement."""


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """The checked settings of `fastloop tune`."""

    budget: TuneBudget
    objective: str
    """The name of the cost that tuning minimizes, see objective.py."""
    memory_limit_mib: float | None
    """The user's limit of memory; None: the memory that the cgroup and the machine allow."""
    space: Space
    """The values to try, by setting."""
    is_default_space: bool
    """False if the user has given the space."""


def override_for_race(request: JobRequest) -> tuple[str, ...]:
    """The overrides of the request's job as the race runs it: with one benchmark, and trials of one
    epoch unless the user has set `epochs`."""
    # Reports, explanations and profiles are switched off: they would be made for each of the many
    # configurations.
    named = {each.lstrip("+").partition("=")[0] for each in request.overrides}
    ours = {"trials": MOST_TRIALS, "report": "false", "explain": "false", "profile": "false"}
    if "epochs" not in named:
        ours["epochs"] = 1
    if len(request.job.benchmark) > 1:
        ours["benchmark"] = benchmark_name(request.job)
    texts = tuple(f"{name}={value}" for name, value in ours.items())
    return Change(overrides=texts).apply(request.overrides)


def plan_tuning(
    command: str,
    request: JobRequest,
    settings: TuneSettings,
    *,
    compose: Compose,
    spending: Spending,
    begin_step: Callable[[str], None],
) -> TuneFile:
    """Plan the race: the jobs that take part, the present one first, with forecasts of each.

    command: the fingerprint of the command. Raises JobFailed if the present job can't be run, and
    UsageError if the budget is too small, if the user's limit of memory can't be kept, or for a
    value that no job can have.
    """
    check_least_time(spending)
    overrides = override_for_race(request)
    present = compose(overrides)
    first = first_pass_within(spending, partial(time_first_pass, request, present, begin_step))
    space, notes = _choose_space(settings, present, request.choices["loader"], waits=first.waits)
    begin_step("finding candidates")
    found = find_tune_candidates(present, overrides, space, compose)
    if settings.is_default_space:
        found = drop_slow_starts(found)
    # The pilot measures the input of the model and of the forecasts for all these candidates.
    workers = sorted({each.job.loading.num_workers for each in found.found})
    pilot = run_pilot(first, workers, _limit_pilot(settings, spending))
    check_memory(pilot, settings.memory_limit_mib)
    check_trial_time(pilot, spending)
    affordable = drop_unaffordable(found, pilot, _limit_candidates(settings))
    # A budget such as 10% is a share of this number of trials, which is not known before.
    spending.exhaustive = (1 + len(affordable.found)) * request.job.most_trials
    predict = partial(_predict, pilot, first.waits)
    trial_s = _forecast_trial_s(pilot)
    raced = choose_raced(affordable.found, present, predict, spending.count_trials(trial_s))
    # All jobs of the race run the same part of an epoch.
    if pilot.cut:
        overrides = Change(overrides=(f"batches={pilot.cut}",)).apply(overrides)
    changes = [(), *(each.change.overrides for each in raced)]
    jobs = [present, *(each.job for each in raced)]
    return TuneFile(
        command=command,
        jobs=[[*Change(overrides=change).apply(overrides)] for change in changes],
        changes=[[*change] for change in changes],
        forecast_mib=[_forecast_mib(job, pilot) for job in jobs],
        left_out={**affordable.left_out},
        predicted=[*map(predict, jobs, changes)],
        trial_s=trial_s,
        notes=[*(f"not tried: {note}" for note in notes), *_describe_gaps(pilot)],
        combinations=len(affordable.found),
        exhaustive=spending.exhaustive,
    )


def _limit_candidates(settings: TuneSettings) -> Bounds:
    """The memory and the time that the settings and the machine leave to a candidate."""
    return Bounds(
        memory_mib=settings.memory_limit_mib or usable_mib(),
        budget_s=settings.budget.seconds,
        slowdown=slowdown_by_load(),
    )


def _forecast_mib(job: Job, pilot: Pilot) -> float | None:
    """Forecast the job's peak memory in MiB; None if the pilot could not observe memory."""
    return forecast_peak_mib(job, pilot.memory) if pilot.memory else None


def first_pass_within(spending: Spending, time_pass: Callable[[Deadline], FirstPass]) -> FirstPass:
    """Run the first pass of the present job, by time_pass, which gets a deadline.

    Raises UsageError if the pass takes so long that the budget has no time for a race. If the first
    samples show that reading all samples would take far too long, the error is raised at once.
    """
    budget_s, begun_s = spending.budget.seconds, spending.seconds_used
    if budget_s is None:
        return time_pass(Deadline())
    try:
        return time_pass(deadline_after(FIRST_PASS_UNTIL * budget_s - begun_s))
    except SlowReadingError as error:
        larger = name_budget_of_share(begun_s + error.seconds, FIRST_PASS_UNTIL)
        allowed = f"for example {larger}, or fastloop prepare first"
        raise UsageError(
            f"budget={budget_s:g}s is too short: {error}; allowed: {allowed}"
        ) from None
    except UsageError as error:
        reason = f"{spending.seconds_used:.0f} s of it are spent, and {error}"
        raise _too_short(reason, spending, spending.seconds_used - begun_s) from None


def check_trial_time(pilot: Pilot, spending: Spending) -> None:
    """Raise UsageError if the budget has no time for even one trial of the present job."""
    trial_s = _forecast_trial_s(pilot)
    if trial_s > spending.remaining_s:
        left = f"{max(0.0, spending.remaining_s):.0f} s are left"
        raise _too_short(
            f"a trial of yours takes about {trial_s:.0f} s, and {left}", spending, trial_s
        )


def _too_short(reason: str, spending: Spending, trial_s: float) -> UsageError:
    """The error for a budget that is too short, which proposes a larger budget."""
    larger = name_larger_budget(spending.budget, spending.seconds_used, trial_s)
    given = f"budget={spending.budget.seconds:g}s is too short"
    return UsageError(f"{given}: {reason}; allowed: for example {larger}")


def _choose_space(
    settings: TuneSettings, present: Job, own_loader: str, *, waits: bool
) -> tuple[Space, list[str]]:
    """Choose the space to try; returns it with notes on values left out, as `fit_space` does."""
    # A space that the user has given is tried as it is.
    if not settings.is_default_space:
        return settings.space, []
    short = is_short(settings.budget)
    return fit_space(settings.space, present, own_loader, is_short=short, waits=waits)


def _predict(pilot: Pilot, waits: bool, job: Job, change: Sequence[str]) -> float:
    """Predict the cost of a job by the model of explain; without it, by settings alone.

    Only ratios of the values matter: they are seconds with a model, and relative costs without it.
    """
    predicted = pilot.predict(job)
    if predicted is not None:
        return predicted
    return expect_cost(job, change, waits=waits, epoch_s=pilot.epoch_s)


def _forecast_trial_s(pilot: Pilot) -> float:
    """Approximate seconds of a trial of the present configuration."""
    return trial_of_epoch_s(pilot.epoch_s, pilot.present.shortest_window_s, pilot.start_s)


def _limit_pilot(settings: TuneSettings, spending: Spending) -> PilotLimits:
    """The time and the memory that the settings leave to the pilot."""
    memory_mib, budget_s = settings.memory_limit_mib, settings.budget.seconds
    if budget_s is None:
        return PilotLimits(memory_mib=memory_mib)
    left_s = budget_s - spending.seconds_used
    # A short budget has no time for passes, unless the user limits memory. Epochs are cut in
    # proportion to the budget.
    if is_short(settings.budget):
        epoch_s = EPOCH_S / SHORT_S * budget_s
        return PilotLimits(seconds=0.0, left_s=left_s, epoch_s=epoch_s, memory_mib=memory_mib)
    until_s = left_s - (1 - PILOT_UNTIL) * budget_s
    return PilotLimits(seconds=until_s, left_s=left_s, memory_mib=memory_mib)


def _describe_gaps(pilot: Pilot) -> list[str]:
    """Notes on the measurements that the pilot had no time for, or that this system can't make."""
    notes = []
    if pilot.memory is None:
        notes.append("no forecast of memory: none can be observed, or not within the budget")
    if pilot.measured is None:
        notes.append("not ranked by the model: the budget is too short to measure for it")
    return notes
