"""Explain one job: find its ladder, verdict and what-ifs, and draw the timeline of an epoch.

The ladder is the time of each part of an epoch; the parts are measured in rungs, from the step
alone up to the whole job. A what-if is a change with its predicted or measured gain. `fastloop
explain` explains a single job; with explain=true, a sweep explains each of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fastloop.core import stats
from fastloop.core.atomic_files import write_text
from fastloop.core.explanation import (
    EXPLANATION_FILE,
    TIMELINE_SVG,
    TIMELINE_TRACE,
    Explanation,
    InstrumentedEpoch,
    Ladder,
)
from fastloop.core.machine_load import LoadWatch
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.result import Measurement
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import UsageError
from fastloop.explain.causes import find_causes
from fastloop.explain.change import Change
from fastloop.explain.epoch_parts import work_of
from fastloop.explain.explained_job import ExplainedJob, count_batches
from fastloop.explain.explanation_text import to_json
from fastloop.explain.image_decoding import describe_decoding
from fastloop.explain.job_facts import benchmark_name, benchmark_of, overlaps, uses_dataloader
from fastloop.explain.ladder import build_ladder
from fastloop.explain.model import is_close
from fastloop.explain.predict import Measured, predict_seconds
from fastloop.explain.predicted_gain import predict_gain
from fastloop.explain.prediction_input import (
    PartCosts,
    SingleBatches,
    measure_for_model,
    measure_hand_off,
    measure_parts,
    time_single_batches,
)
from fastloop.explain.proposed_changes import propose_changes, read_changes
from fastloop.explain.record_epoch import Recording
from fastloop.explain.rung_passes import Round
from fastloop.explain.surroundings import Beginning, look_after, look_before
from fastloop.explain.verdict import add_threads, is_imprecise, judge
from fastloop.explain.what_ifs import (
    ChangedJob,
    choose,
    find_best,
    find_changed_jobs,
    list_what_ifs,
    try_changed_jobs,
)
from fastloop.observe.chrome_trace import format_trace
from fastloop.observe.lanes import build_lane_rows, part_seconds
from fastloop.observe.timeline_svg import draw_timeline
from fastloop.processes.rank_group import resolve_device
from fastloop.sweep.early_check import reason_against
from fastloop.sweep.explain_stage import ExplainJob
from fastloop.sweep.prepare_job import prepare_job
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest
from fastloop.sweep.sweep_job import SweepJob
from fastloop.trial.job import Job
from fastloop.trial.timed_trial import run_trial

TRAVERSAL = Change(overrides=("benchmark=traversal", "execution=eager", "precision=float32"))
"""The change that makes a job run its loader without steps."""
OF_THIS_COMMAND = ("baseline", "explain", "resume", "retry_failed", "try", "what_if")
"""Settings of the command and not of the job, which the command lines of changes leave out."""


@dataclass(frozen=True, kw_only=True)
class _JobPasses:
    """Measurements of the passes of a job; a pass is an epoch, or a part of one."""

    explained: ExplainedJob
    """The job with the epochs of its rounds, which may be cut."""
    first_batch_s: float
    """Seconds from the opening of the loader to its first batch on the device."""
    times: SingleBatches
    """Times of single batches without workers."""
    serial: Round
    """A round of the ladder in which loading does not overlap steps. If the job overlaps them, this
    is an extra round without workers; otherwise the last of `rounds`. If the loader can't be taken
    apart, it is also the last of `rounds`, even if loading overlaps steps."""
    rounds: list[Round]
    """The times of all rungs, in each round."""
    ladder: Ladder
    without_steps: Measurement
    """The trial of the loader without steps."""


def check_request(requests: Sequence[JobRequest], command: str = "explain") -> JobRequest:
    """Return the only request, without settings of the command in its overrides.

    command: name of the command, `explain` or `tune`, for messages. Raises UsageError if there are
    several requests, or if the command can't run the job.
    """
    request = requests[0]
    if len(requests) > 1:
        raise UsageError(f"{command} takes one job; these overrides make {len(requests)}")
    if request.launcher.world_size > 1:
        size = request.launcher.world_size
        raise UsageError(f"{command} with {size} processes: allowed: launcher=single")
    if isinstance(request.job.dataset, StreamingDataset):
        loader = request.choices["loader"]
        raise UsageError(f"{command}: loader={loader} brings its own data; name one with dataset=")
    if reason := reason_against(request.job, request.launcher):
        raise UsageError(f"unsupported: {reason}")
    return replace(request, overrides=_without_sweep(request.overrides))


def _without_sweep(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides without settings of OF_THIS_COMMAND, for the command line of a change."""
    return tuple(each for each in overrides if each.partition("=")[0] not in OF_THIS_COMMAND)


def explain_job(
    request: JobRequest,
    compose: Callable[[Sequence[str]], Job],
    progress: Progress,
    folder: Path,
    seconds: float | None = None,
) -> Explanation:
    """Measure the request's job, and return its explanation.

    compose: returns the job of a list of overrides. progress: gets the name of each step. folder:
    gets the timeline's files. seconds: seconds after which no round begins beyond the third; None:
    a minute. Raises JobFailed if a pass fails, and UsageError as `ExplainedJob.cut` does.
    """
    progress.begin_step("preparing the data")
    whole_epochs = _prepare(request, progress)
    # The load by other programs is watched from here on, because preparing data is not measured.
    watch = LoadWatch()
    whole_epochs = replace(
        whole_epochs, begin_step=partial(_begin_pass, watch, progress.begin_step)
    )
    # The first pass brings the files into memory, so the page cache is looked at before.
    beginning = look_before(whole_epochs.prepared.files)
    traversal = compose(TRAVERSAL.apply(request.overrides))
    passes = _measure(whole_epochs, traversal, request.job.most_trials, seconds)
    explained = passes.explained
    name = benchmark_name(request.job)
    decoding = describe_decoding(request.job, whole_epochs.prepared)
    verdict = judge(passes.ladder, name, passes.first_batch_s, decoding)
    costs = measure_parts(explained)
    found = _find_changes(explained, beginning, costs, request, compose)
    measured = _measure_for_changes(explained, found, passes, costs)
    model_ratio = predict_seconds(explained.job, measured) / passes.ladder.epoch_s.value
    # If the model misses the time of the unchanged job, nothing is predicted.
    model = measured if is_close(model_ratio) else None
    changes = _predict_gains(explained.job, found, model, passes.ladder)
    chosen = choose(changes, request.sweep.tries)
    gains = try_changed_jobs(explained, chosen, request.job.most_trials, seconds)
    what_ifs = list_what_ifs(changes, gains, request)
    around = look_after(explained.job, beginning, model, passes.times.own_threads)
    label = f"{request.choices['loader']} {whole_epochs.prepared.label}"
    return Explanation(
        name=label,
        benchmark=name,
        device=str(resolve_device(request.job.device)),
        rounds=len(passes.rounds),
        window_batches=count_batches(explained.job, explained.prepared),
        model_ratio=model_ratio,
        loader_samples_per_s=passes.without_steps.samples_per_s,
        limit_samples_per_s=passes.without_steps.limit_samples_per_s,
        limit_origin=passes.without_steps.limit_origin,
        verdict=add_threads(verdict, what_ifs),
        ladder=passes.ladder,
        what_ifs=what_ifs,
        best=find_best(what_ifs),
        timeline=write_timeline(explained.record_epoch(), folder, f"{label}, {name}"),
        causes=find_causes(explained.job, around, verdict, passes.ladder, what_ifs),
        machine_load=watch.summary(),
    )


def _begin_pass(watch: LoadWatch, begin_step: Callable[[str], None], step: str) -> None:
    """Tell the watch that the pass before has ended, and begin the next one."""
    watch.end_stretch()
    begin_step(step)


def _prepare(request: JobRequest, progress: Progress) -> ExplainedJob:
    """Prepare the data of the request's job, and return the job to explain, with whole epochs."""
    job = request.job
    # Only the benchmark that is explained is kept, because others would only cost time.
    job = replace(job, benchmark={benchmark_name(job): benchmark_of(job)})
    prepared: PreparedData = prepare_job(job, request.launcher)
    return ExplainedJob(
        job=job,
        prepared=prepared,
        launcher=request.launcher,
        begin_step=progress.begin_step,
        expect_steps=progress.expect_steps,
        whole_batches=count_batches(job, prepared),
    )


def _measure(
    whole_epochs: ExplainedJob, traversal: Job, num_rounds: int, seconds: float | None
) -> _JobPasses:
    """Run the passes.

    whole_epochs: the job with whole epochs. traversal: the job without steps. num_rounds: number of
    rounds, and of rounds to add if the ladder is imprecise. seconds: as in `explain_job`.
    """
    present = whole_epochs.time_batches()
    times = time_single_batches(whole_epochs)
    explained = whole_epochs.cut(present)
    serial = None
    work_s = None
    if not uses_dataloader(whole_epochs.job):
        # Such a loader can't be taken apart: the work of its parts is unknown.
        work_s = {}
    elif overlaps(whole_epochs.job):
        # The work of workers is hidden behind the steps. A round of the ladder without workers
        # shows that work. One round suffices, because the hidden work needs no interval.
        serial = explained.without_workers(1).time_ladder(1, None)[0]
        work_s = work_of(serial, whole_epochs.whole_batches)

    # Each pass begins with a warm-up epoch, in which persistent workers start. The timed epochs
    # then contain no start of workers.
    started = None if whole_epochs.job.loading.persistent_workers else serial
    without_steps = _time_without_steps(explained, traversal)
    without_steps_s = without_steps.seconds / without_steps.epochs
    device = resolve_device(whole_epochs.job.device).type

    def build(rounds: list[Round]) -> Ladder:
        """Build the ladder from these rounds."""
        # The last rung is the whole job. `shares` compares the loader alone with the whole job.
        last = explained.rungs[-1]
        shares = [without_steps_s / stats.median([times[last].seconds for times in rounds])]
        return build_ladder(rounds, whole_epochs.whole_batches, work_s, started, shares, device)

    rounds = explained.time_ladder(num_rounds, seconds, lambda few: is_imprecise(build(few)))
    return _JobPasses(
        explained=explained,
        first_batch_s=present.first_batch_s,
        times=times,
        serial=serial or rounds[-1],
        rounds=rounds,
        ladder=build(rounds),
        without_steps=without_steps,
    )


def _time_without_steps(explained: ExplainedJob, traversal: Job) -> Measurement:
    """Run a trial of the loader without steps, which also compares the batches with the dataset.

    traversal: the job without steps.
    """
    explained.begin_step("comparing the data, and the loader alone")
    job = replace(traversal, batches=explained.job.batches, epochs=1)
    trial = explained.launcher.call(
        run_trial, job, explained.prepared, 0, now_ns(), timeout_s=job.trial_timeout_s
    )
    (measurement,) = trial.benchmarks.values()
    return measurement


def _find_changes(
    explained: ExplainedJob,
    beginning: Beginning,
    costs: PartCosts,
    request: JobRequest,
    compose: Callable[[Sequence[str]], Job],
) -> list[ChangedJob]:
    """Find the changes that this job supports; changes that the user has named come last.

    beginning: the state of the page cache before the first pass. compose: as in `explain_job`.
    """
    changes = propose_changes(
        explained.job, decoders=[*costs.decoders], in_memory=beginning.in_memory
    )
    asked = read_changes(request.sweep.what_if)
    # If a proposed change is also named by the user, the user's is kept, which is always tried.
    named = {each.overrides for each in asked}
    changes = [each for each in changes if each.overrides not in named]
    return find_changed_jobs(explained, [*changes, *asked], request.overrides, compose)


def _measure_for_changes(
    explained: ExplainedJob,
    found: Sequence[ChangedJob],
    passes: _JobPasses,
    costs: PartCosts,
) -> Measured:
    """Measure the values from which the model predicts the changes that were found."""
    jobs = [each.job for each in found]
    workers = {job.loading.num_workers for job in jobs if uses_dataloader(job)}
    # The model also predicts the unchanged job. Its error for that job enters each prediction.
    workers.add(explained.job.loading.num_workers)
    hand_off = measure_hand_off(explained, sorted(workers), passes.rounds)
    return measure_for_model(explained, passes.times, passes.serial, hand_off, costs)


def _predict_gains(
    present: Job, found: Sequence[ChangedJob], model: Measured | None, ladder: Ladder
) -> list[ChangedJob]:
    """The changes with their predicted gains.

    model: the input of the model of the present job; None: nothing is predicted.
    """
    if model is None:
        return [*found]
    return [
        replace(each, predicted_gain=predict_gain(each.job, present, model, ladder))
        for each in found
    ]


def write_timeline(recording: Recording, folder: Path, title: str) -> InstrumentedEpoch:
    """Write timeline.svg and timeline.json to the folder; returns figures of the recorded epoch.

    title: the title of the picture.
    """
    write_text(folder / TIMELINE_SVG, draw_timeline(recording.events, title))
    trace = format_trace(build_lane_rows(recording.events), recording.unix_offset_ns)
    write_text(folder / TIMELINE_TRACE, trace)
    seconds = seconds_between(recording.start_ns, recording.stop_ns)
    seconds_by_part = part_seconds(recording.loop)
    return InstrumentedEpoch(
        seconds=seconds,
        batches=sum(event.part is Part.WAIT for event in recording.loop),
        coverage=recording.coverage,
        shares={str(part): part_s / seconds for part, part_s in seconds_by_part.items()},
    )


def job_explainer(
    requests: Sequence[JobRequest], compose: Callable[[Sequence[str]], Job]
) -> ExplainJob:
    """A function that explains a job of the sweep and writes explain.json to the job's folder.

    compose: returns the job of a list of overrides.
    """

    def explain_entry(entry: SweepJob, begin_step: Callable[[str], None]) -> Explanation:
        request = check_request([requests[entry.index]])
        progress = Progress(begin_step=begin_step)  # the bar counts the steps of all jobs
        explanation = explain_job(request, compose, progress, entry.folder)
        write_text(entry.folder / EXPLANATION_FILE, to_json(explanation))
        return explanation

    return explain_entry
