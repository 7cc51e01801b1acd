"""Find the common causes of a job's slow loop: each is found, not found or unknown, with facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastloop.core.cgroup import MOST_THROTTLED
from fastloop.core.explanation import Cause, Ladder, Verdict, WhatIf
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.parts import Part
from fastloop.explain.cause_names import CauseName
from fastloop.explain.change import LEAST_GAIN
from fastloop.explain.core_limits_text import describe_cores, describe_quota
from fastloop.explain.image_decoding import reads_images
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.proposed_changes import LEAST_WARM_SHARE
from fastloop.explain.surroundings import Surroundings
from fastloop.trial.job import Job

LEAST_COMPUTING_SHARE = 0.25
"""Samples wait, for example for a disk or a network, if the CPU time of making them is less than
this share of the elapsed time. Waits for a core are subtracted from that time if the system counts
them. If it does not, samples that compute are still above this share, even if several processes
share a core."""
STORE_LOADERS = ("loader=np_memmap", "loader=fastloop")
"""Changes to loaders that do not make each sample in Python."""
LEAST_OVERLAPPING_WORKERS = 8
"""Minimum number of workers that is proposed for samples that wait."""


def find_causes(
    job: Job,
    surroundings: Surroundings,
    verdict: Verdict,
    ladder: Ladder,
    what_ifs: Sequence[WhatIf],
) -> tuple[Cause, ...]:
    """The causes that this job can have, the most common first."""
    causes = [_judge_threads(surroundings, what_ifs), _judge_step(verdict, ladder)]
    if uses_dataloader(job):
        causes.append(_judge_workers(job, what_ifs))
        causes += _judge_waits(job, surroundings, verdict)
    causes.append(_judge_quota(surroundings))
    allowed, machine = surroundings.visible_cores, surroundings.machine_cores
    if allowed < machine:
        # The measurements do not show how many cores the job's threads and workers would have used.
        text = describe_cores(allowed, machine)
        causes.append(Cause(name=CauseName.CORES, is_found=None, text=text))
    if reads_images(job):
        decoding = _match_names("decoder=", *STORE_LOADERS)
        causes.append(
            _judge_by_gain(CauseName.DECODING, what_ifs, decoding, "no quicker way is known")
        )
    causes.append(_judge_cold_files(job, surroundings, what_ifs))
    if uses_dataloader(job) and not reads_images(job):
        per_sample = _match_names(*STORE_LOADERS)
        causes.append(
            _judge_by_gain(CauseName.PER_SAMPLE, what_ifs, per_sample, "nothing to compare with")
        )
    return tuple(causes)


def _judge_threads(surroundings: Surroundings, what_ifs: Sequence[WhatIf]) -> Cause:
    threads = surroundings.torch_threads
    if threads == 1:
        return Cause(name=CauseName.THREADS, is_found=False, text="there is one")
    known = f"{threads} threads for {significant(surroundings.available_cores)} cores"
    return _judge_by_gain(CauseName.THREADS, what_ifs, _match_names("torch_threads="), known)


def _judge_step(verdict: Verdict, ladder: Ladder) -> Cause:
    wait = show_estimate(ladder.wait_share, show_percent)
    # UNATTRIBUTED may mean that the rounds do not tell whether the step limits the loop.
    is_found = None if verdict.word is Part.UNATTRIBUTED else verdict.word is Part.STEP
    return Cause(name=CauseName.STEP, is_found=is_found, text=f"a perfect loader would save {wait}")


def _judge_workers(job: Job, what_ifs: Sequence[WhatIf]) -> Cause:
    workers = job.loading.num_workers
    untried = "no other number was tried"
    cause = _judge_by_gain(CauseName.WORKERS, what_ifs, _match_names("num_workers="), untried)
    return Cause(name=cause.name, is_found=cause.is_found, text=f"{workers} now; {cause.text}")


def _judge_waits(job: Job, surroundings: Surroundings, verdict: Verdict) -> list[Cause]:
    """The cause that samples wait, for example for a disk; an empty list if they compute.

    The cause is found if the verdict says that the loop waits for the making of batches.
    """
    share = surroundings.load_cpu_share
    if share >= LEAST_COMPUTING_SHARE:
        return []
    text = f"making a batch computes for {show_percent(share)} of its time"
    # Samples that wait cost no time if the loop does not wait for its batches.
    costs = verdict.word in (Part.READ, Part.DECODE, Part.TRANSFORM, Part.COLLATE)
    is_found = None if verdict.word is Part.UNATTRIBUTED else costs
    more = max(LEAST_OVERLAPPING_WORKERS, 2 * job.loading.num_workers)
    advice = f"let more samples wait at a time, as num_workers={more} does" if is_found else ""
    return [Cause(name=CauseName.WAITS, is_found=is_found, text=text, advice=advice)]


def _judge_quota(surroundings: Surroundings) -> Cause:
    quota = surroundings.quota
    visible = surroundings.visible_cores
    if quota is None or quota >= visible:
        return Cause(name=CauseName.QUOTA, is_found=False, text="there is none")
    text = describe_quota(quota, surroundings.throttled, visible)
    if surroundings.gain_without_quota is not None:
        text += f"; without it {show_percent(surroundings.gain_without_quota)} less is predicted"
    return Cause(name=CauseName.QUOTA, is_found=surroundings.throttled > MOST_THROTTLED, text=text)


def _judge_cold_files(job: Job, surroundings: Surroundings, what_ifs: Sequence[WhatIf]) -> Cause:
    name = CauseName.COLD_FILES
    share = surroundings.in_memory
    if job.cache == "cold":
        return _judge_by_gain(name, what_ifs, _match_names("cache=warm"), "cache=cold evicts them")
    if share is None:
        return Cause(name=name, is_found=None, text="its files are not known")
    known = f"{show_percent(share)} of their pages were in memory before"
    if share >= LEAST_WARM_SHARE or job.cache == "warm":
        return Cause(name=name, is_found=False, text=known)
    # The measurements have read the files into memory. So only a job with cache=cold shows the cost
    # of reading the files from disk: if reading costs time, the "gain" of that job is negative.
    cost = next((each for each in what_ifs if each.change == "cache=cold"), None)
    if cost is None or cost.realised_gain is None:
        return Cause(name=name, is_found=None, text=f"{known}; see cache=cold")
    gain = cost.realised_gain
    costs = f"{known}; reading all of them costs {show_percent(-gain.value)} of an epoch"
    return Cause(name=name, is_found=gain.high < -LEAST_GAIN, text=costs)


def _judge_by_gain(
    name: CauseName,
    what_ifs: Sequence[WhatIf],
    removes_cause: Callable[[WhatIf], bool],
    otherwise: str,
) -> Cause:
    """The cause: found, not found or unknown by the gain of the best change that would remove it.

    removes_cause: true for a change that would remove the cause. otherwise: the text if no such
    change has a realised or predicted gain.
    """
    known = [each for each in what_ifs if removes_cause(each)]
    tried = [(each, gain) for each in known if (gain := each.realised_gain)]
    predicted = [(each, gain) for each in known if (gain := each.predicted_gain)]
    if not tried and not predicted:
        return Cause(name=name, is_found=None, text=otherwise)
    # A realised gain is worth more than any prediction.
    best, gain = max(tried or predicted, key=lambda pair: pair[1].value)
    verb = "saves" if tried else "is predicted to save"
    text = f"{best.change} {verb} {show_estimate(gain, show_percent)}"
    # A prediction can exclude a cause, but never prove one.
    is_proven = bool(tried) and gain.low > 0 and gain.value >= LEAST_GAIN
    is_excluded = gain.high < LEAST_GAIN or (bool(tried) and gain.value < LEAST_GAIN)
    is_found = is_proven if is_proven or is_excluded else None
    return Cause(name=name, is_found=is_found, text=text)


def _match_names(*starts: str) -> Callable[[WhatIf], bool]:
    """Make a function that is true for a change with a name that begins with any of these texts."""
    return lambda what_if: what_if.change.startswith(starts)
