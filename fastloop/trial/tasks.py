"""Make the tasks that a sweep gives to the ranks of a job: a trial, its shadow, and passes.

Each task is a function with its arguments, and also a JSON command for ranks that torchrun has
started on other nodes. These ranks have composed the same jobs from the same command line. So the
JSON refers to a job by its index, and no code is sent over the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fastloop.core.launcher import RankTask
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Dataset
from fastloop.core.result import Attribution, Calls, Shadow, Trial
from fastloop.core.spans import now_ns
from fastloop.trial.earlier_trials import EarlierFindings
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job import Job
from fastloop.trial.profiling import run_profiling
from fastloop.trial.shadow import run_shadow
from fastloop.trial.timed_trial import run_trial

TRIAL, SHADOW, INSTRUMENTED, PROFILED = "trial", "shadow", "instrumented", "profiled"
EARLIER, CALLS = TypeAdapter(EarlierFindings), TypeAdapter(Calls)
NOWHERE = Path()
"""The folder of a profile on ranks other than 0, which write no profile."""


def trial_task(
    index: int, job: Job, prepared: PreparedData, number: int, earlier: EarlierFindings
) -> RankTask:
    """The task that runs trial `number` of the job with that index."""
    found = EARLIER.dump_python(earlier, mode="json")
    command = _encode_command(TRIAL, index, prepared, number=number, earlier=found)
    args = (job, prepared, number, now_ns(), earlier)
    return RankTask(function=run_trial, args=args, command=command, answer_type=Trial)


def shadow_task(
    index: int, job: Job, prepared: PreparedData, number: int, calls: Calls
) -> RankTask:
    """The task that runs the shadow of trial `number` of the job with that index.

    calls: the trial's calls of the loader, which the shadow repeats.
    """
    made = CALLS.dump_python(calls, mode="json")
    command = _encode_command(SHADOW, index, prepared, number=number, calls=made)
    args = (job, prepared, number, calls)
    return RankTask(function=run_shadow, args=args, command=command, answer_type=Shadow)


def instrumentation_task(index: int, job: Job, prepared: PreparedData, benchmark: str) -> RankTask:
    """The task that runs the instrumented pass of a benchmark of the job with that index."""
    command = _encode_command(INSTRUMENTED, index, prepared, benchmark=benchmark)
    args = (job, prepared, benchmark)
    return RankTask(
        function=run_instrumentation, args=args, command=command, answer_type=Attribution
    )


def profiling_task(
    index: int, job: Job, prepared: PreparedData, benchmark: str, folder: Path
) -> RankTask:
    """The task that profiles a benchmark of the job with that index; rank 0 writes to `folder`."""
    command = _encode_command(PROFILED, index, prepared, benchmark=benchmark)
    args = (job, prepared, benchmark, folder)
    return RankTask(function=run_profiling, args=args, command=command)


def task_from(command: Mapping[str, Any], jobs: Sequence[Job]) -> RankTask:
    """The task that a JSON command describes, for a rank that has composed these jobs."""
    index = command["job"]
    job = jobs[index]
    prepared = _decode_prepared(command["prepared"], job.dataset)
    if command["task"] == TRIAL:
        earlier = EARLIER.validate_python(command["earlier"])
        return trial_task(index, job, prepared, command["number"], earlier)
    if command["task"] == SHADOW:
        calls = CALLS.validate_python(command["calls"])
        return shadow_task(index, job, prepared, command["number"], calls)
    if command["task"] == INSTRUMENTED:
        return instrumentation_task(index, job, prepared, command["benchmark"])
    return profiling_task(index, job, prepared, command["benchmark"], NOWHERE)


def _encode_command(task: str, index: int, prepared: PreparedData, **rest: Any) -> dict[str, Any]:
    """The JSON command of a task. It has all fields of the prepared data except the dataset."""
    plain = {name: getattr(prepared, name) for name in _PLAIN_TYPES}
    encoded = {
        name: _PLAIN_TYPES[name].dump_python(value, mode="json") for name, value in plain.items()
    }
    return {"task": task, "job": index, "prepared": encoded, **rest}


def _decode_prepared(encoded: Mapping[str, Any], dataset: Dataset) -> PreparedData:
    plain = {name: adapter.validate_python(encoded[name]) for name, adapter in _PLAIN_TYPES.items()}
    return PreparedData(dataset=dataset, **plain)


_HINTS = {
    "reference": Path,
    "folder": Path,
    "files": tuple[Path, ...],
    "sample": tuple[tuple[str, tuple[int, ...]], ...],
    "broken": tuple[tuple[int, str], ...],
}
_PLAIN_TYPES = {
    field.name: TypeAdapter(_HINTS.get(field.name, Any))
    for field in fields(PreparedData)
    if field.name != "dataset"
}
"""The JSON type of each field of PreparedData, except the dataset, which every rank has
composed."""
