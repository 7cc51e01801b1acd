"""Check early whether a sweep can run: the settings of its jobs, and a few samples of each dataset.

`reason_against_sweep` compares the settings of all jobs. A sweep that has to wait for the machine
calls `check_requests` before it waits, so that nobody waits in vain. `fastloop tune` always calls
this function.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from fastloop.core.benchmark import runs_model
from fastloop.core.launcher import Launcher
from fastloop.core.protocols import Dataset, StreamingDataset
from fastloop.core.text import plain_reason
from fastloop.core.traits import CollateTraits, LoaderTraits, TransformTraits, traits_of
from fastloop.core.types import (
    BadData,
    FailureKind,
    JobFailed,
    SamplesDiffer,
    Tree,
    Unsupported,
    UnusableLeaves,
    UsageError,
)
from fastloop.data.chunked_reader import IndexedSamples
from fastloop.data.class_counts import ClassCounter, resolve_num_classes
from fastloop.data.cropped_dataset import CroppedDataset
from fastloop.data.dataset_samples import is_broken
from fastloop.data.prepare_dataset import limit_preparation
from fastloop.data.ragged import is_ragged
from fastloop.data.sample_advice import advise
from fastloop.data.sample_chunks import collate_chunk
from fastloop.data.spread_indices import spread_indices
from fastloop.processes.environments import environment_for
from fastloop.processes.rank_group import resolve_device
from fastloop.reporting.baseline import find_baseline, no_baseline_message
from fastloop.sweep.job_names import job_names
from fastloop.sweep.request import JobRequest
from fastloop.sweep.settings import SWEEP_SETTINGS
from fastloop.trial.job import Job
from fastloop.trial.model_input import find_model_input
from fastloop.trial.support import check_support

UNSUPPORTED = f"{FailureKind.UNSUPPORTED}: "
"""Beginning of the reason of a job that is skipped because it is unsupported."""

NUM_CHECKED = 16
"""Number of samples that are checked, spread evenly over the dataset."""


def reason_against_sweep(requests: Sequence[JobRequest]) -> str:
    """The reason why the sweep can't be measured; empty if it can."""
    first = requests[0]
    sweep = first.tracker, first.sweep
    if any((request.tracker, request.sweep) != sweep for request in requests):
        names = ", ".join(("tracker", *SWEEP_SETTINGS))
        return f"these settings are the same for all jobs of a sweep: {names}"
    loaders = [request.choices["loader"] for request in requests]
    names = dict(zip(job_names(requests), loaders, strict=True))
    if (baseline := first.sweep.baseline) and not find_baseline(names, baseline):
        return no_baseline_message(names, baseline)
    if first.sweep.seconds and not first.sweep.interleave:
        setting = f"seconds={first.sweep.seconds:g} with interleave=false"
        return f"{setting}: the trials of the first job may leave no time for the others"
    if reason := _reason_against_auto(requests):
        return reason
    # A single job that can't run gets no table, because the reason is the whole answer.
    reason = reason_against(first.job, first.launcher) if len(requests) == 1 else ""
    return f"unsupported: {reason}" if reason else ""


def _reason_against_auto(requests: Sequence[JobRequest]) -> str:
    """The reason why trials=auto does not work for these requests; empty if it does."""
    jobs = [request.job for request in requests]
    if not any(job.is_auto for job in jobs):
        return ""
    if numbers := [job.trials for job in jobs if not job.is_auto]:
        both = f"trials=auto,{numbers[0]}"
        return f"{both}: allowed: auto for all jobs of a sweep, as they are ranked together"
    if not requests[0].sweep.interleave:
        return "trials=auto with interleave=false: allowed: interleave=true, as rounds are judged"
    return ""


def check_requests(requests: Sequence[JobRequest]) -> None:
    """Check the settings of each job, and a few samples of each dataset.

    Raises UsageError if no job can run. If only some can't, prints a line with the reason for each
    of these.
    """
    checked: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for name, request in zip(job_names(requests), requests, strict=True):
        if reason := _reason(request, checked):
            reasons[name] = reason
    if len(reasons) == len(requests):
        raise UsageError("\n".join(dict.fromkeys(reasons.values())))
    for name, reason in reasons.items():
        unsupported = reason.removeprefix(UNSUPPORTED)
        will = "can't be measured" if unsupported == reason else "is skipped"
        print(f"{name} {will}: {unsupported}", file=sys.stderr, flush=True)


def reason_against(job: Job, launcher: Launcher) -> str:
    """The reason why this job can't run on this machine; empty if it can."""
    try:
        launcher.check(check_support(job, launcher.world_size))
    except Unsupported as error:
        return str(error)
    return ""


def _reason(request: JobRequest, checked: dict[str, str]) -> str:
    """The reason why this job can't run; empty if none is known.

    checked: dataset -> the reason why jobs with it can't run, or empty; this job's dataset is
    added.
    """
    job, launcher = request.job, request.launcher
    if reason := reason_against(job, launcher):
        return f"{UNSUPPORTED}{reason}"
    # Samples are checked by a process in the job's environment, which is built later.
    environment = environment_for(job.requirements)
    if environment is not None and not environment.is_built:
        return ""
    # If the collate defines the samples, they are not known before the collate has made them.
    if traits_of(CollateTraits, job.collate).defines_samples:
        return ""
    key = repr((job.dataset, job.collate.tolerant))
    if key not in checked:
        try:
            launcher.call(check_within, job.trial_timeout_s, job.dataset, job.collate.tolerant)
            checked[key] = ""
        except JobFailed as error:
            checked[key] = plain_reason(error.failure.reason)
    return checked[key]


def check_within(limit_s: float, dataset: Dataset, tolerant: bool = False) -> None:
    """Check samples as `check_samples` does, within a time limit.

    Raises TimeLimit if no sample is read for `limit_s` seconds.
    """
    with limit_preparation(dataset, limit_s):
        check_samples(dataset, tolerant)


def check_samples(dataset: Dataset, tolerant: bool = False) -> None:
    """Fetch the dataset and collate NUM_CHECKED of its samples; only fetching writes files.

    tolerant: True: samples that can't be decoded are left out. Raises the BadData, Unsupported or
    OSError that preparing the dataset would raise for these samples.
    """
    # A streaming dataset has no samples before its loader is measured.
    if isinstance(dataset, StreamingDataset):
        return
    dataset.fetch()
    samples = IndexedSamples(dataset.open(), tolerant)
    if not len(samples):
        raise BadData(f"{dataset.label}: no readable sample")
    indices = spread_indices(len(samples), NUM_CHECKED)
    try:
        collate_chunk([samples[index] for index in indices], is_ragged(dataset), tolerant)
    except (SamplesDiffer, UnusableLeaves) as error:
        raise BadData(advise(error, dataset)) from error


def refuse_unfit_model(request: JobRequest) -> None:
    """Raise JobFailed if the model of the job can't take the samples of its dataset.

    One sample shows this before all samples are read to prepare the data.
    """
    environment = environment_for(request.job.requirements)
    # The sample may be readable only with libraries of the job's environment, so nothing is checked
    # if the environment is built later.
    if environment is None or environment.is_built:
        request.launcher.call(check_model_input, request.job)


def check_model_input(job: Job) -> None:
    """Fetch the dataset, and raise Unsupported if the job's model can't take its first sample.

    Raises TimeLimit if no sample is read for `trial_timeout_s`.

    Nothing is checked in these cases: no benchmark runs a model; the samples come as a stream, are
    cropped or differ in length; the user's code makes the batches; another device than the CPU
    transforms them.
    """
    if not _can_check_model(job):
        return
    with limit_preparation(job.dataset, job.trial_timeout_s):
        _check_first_sample(job)


def _can_check_model(job: Job) -> bool:
    """True if a benchmark runs a model, and the first sample shows if the model takes samples."""
    if not any(map(runs_model, job.benchmark.values())):
        return False
    makes_batches = traits_of(LoaderTraits, job.loader).is_user_code
    if makes_batches or traits_of(CollateTraits, job.collate).defines_samples:
        return False
    # The size of a crop is fixed by the settings, and samples of several lengths have no model.
    if isinstance(job.dataset, StreamingDataset | CroppedDataset) or is_ragged(job.dataset):
        return False
    # A transform on a GPU may refuse a batch in the CPU's memory.
    return not _is_transformed(job, "device") or resolve_device(job.device).type == "cpu"


def _check_first_sample(job: Job) -> None:
    """Raise Unsupported if the job's model can't take the first readable sample."""
    job.dataset.fetch()
    samples = IndexedSamples(job.dataset.open(), job.collate.tolerant)
    fetched = (sample for _, sample, _ in map(samples.__getitem__, range(len(samples))))
    sample = next((each for each in fetched if not is_broken(each)), None)
    # If all samples are broken, preparing the data reports that.
    if sample is None:
        return
    classes = ClassCounter()
    batch = _collate_one(sample)
    classes.update(batch)
    if _is_transformed(job, "worker"):
        batch = _collate_one(job.transform.transform_sample(sample))
    elif _is_transformed(job, "device"):
        batch = job.transform.transform_batch(batch)
    find_model_input(job, resolve_num_classes(job.dataset.num_classes, classes.count), batch)


def _is_transformed(job: Job, where: Literal["worker", "device"]) -> bool:
    """True if the job transforms samples in this place: in a worker, or on the device."""
    is_identity = traits_of(TransformTraits, job.transform).is_identity
    return not is_identity and job.transform.where == where


def _collate_one(sample: Tree) -> Tree:
    """A batch of this sample; raises BadData for a sample that can't be collated."""
    return collate_chunk([(0, sample, "")], ragged=False).batch
