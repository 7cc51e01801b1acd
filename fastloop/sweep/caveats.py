"""Find the caveats of a job: short lines that limit the meaning of its figures.

Caveats are derived from the raw values of the trials, and no value is dropped for them. An option
can add its own caveat: see HasCaveat and HasRowsCaveat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fastloop.core import stats
from fastloop.core.auto_trials import fewest_trials
from fastloop.core.benchmark import runs_model
from fastloop.core.limit import typical_origin
from fastloop.core.number_text import show_fine_percent, significant
from fastloop.core.plan import HasRowsCaveat
from fastloop.core.protocols import HasCaveat
from fastloop.core.result import Attribution, Result, measurements
from fastloop.core.tracked_metrics import metrics
from fastloop.data.decoder_agreement import COMPARED_SAMPLES, TOLERANCE
from fastloop.reporting.comparable import brings_data, delivers_same
from fastloop.reporting.shuffling_quality import describe_shuffling, find_shuffling, shuffles_less
from fastloop.sweep.job_config import LOADER_BATCH_SIZE
from fastloop.trial.job import Job
from fastloop.trial.page_cache import COLD_FRACTION

ABOVE_LIMIT = 1.1
"""Noise does not explain a rate above this multiple of the limit, because the limit is measured by
the fastest way known."""
CAUSES = {
    "rows": "its rows lie next to each other, or were gathered before",
    "converted rows": "its rows lie next to each other, or were converted before",
    "decoded images": "its images were decoded before, or by a decoder that was not measured",
    "cropped images": "its crops were made before, or by a decoder that was not measured",
    "copies": "its batches were copied before",
}
"""Kind of limit -> the reason why a loader can be above it."""
UNSTABLE_FRACTION = 0.10
"""A job is unstable if its standard deviation is at least this share of the mean."""
FENCE = 3.0
"""A time is an outlier if its distance from the quartiles exceeds this multiple of the
interquartile range (Tukey's outer fence). The inner fence (1.5) flags a third of all quiet jobs
with five trials."""
DRIFT_P = 0.01
"""Significance level of the test for a drift, which is made for each job and benchmark. Five trials
rise or fall steadily by chance in 2 of 120 cases, and the quickstart makes ten such tests: at a
level of 0.05, one of six quickstarts would have a drift by chance."""
MIN_FENCE_FRACTION = 0.05
"""Minimum distance of a fence from the quartiles, as a share of the median: for a very quiet job,
Tukey's fence would be too tight."""
PERIODIC_FACTOR = 3.0
"""Waits are periodic if the loop waits more than this many times as long for the batches of one
worker as for those of the other workers."""
MIN_TURNS = 5
"""Minimum number of turns that show whether waits are periodic. In a turn each worker makes one
batch."""


def find_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """Caveats of the job's figures, given the results of all jobs of its sweep."""
    if not result.trials:
        return []
    workers = int(result.params.get("num_workers") or 0)
    crowd = crowd_caveats(
        num_workers=workers,
        torch_threads=result.trials[0].torch_threads,
        usable_cores=result.environment.get("cores_usable") or 1,
    )
    others = [other for other in sweep if other.trials and other is not result]
    return [
        *crowd,
        *cache_caveats(result),
        *data_caveats(result, sweep),
        *_process_caveats(result),
        *shuffling_caveats(result, others),
        *_round_caveats(result, sweep, has_others=bool(others)),
        *_benchmark_caveats(result),
        *_above_limit(result),
        *_pass_caveats(result, workers),
    ]


def _process_caveats(result: Result) -> list[str]:
    """Caveats about processes that ran during or after the trials, and about missing trials."""
    lines = []
    if left := [command for trial in result.trials for command in trial.left_running]:
        count = "1 process" if len(left) == 1 else f"{len(left)} processes"
        first = "" if len(left) == 1 else ", the first"
        lines.append(f"left running: {count}, ended after the trial{first}: {left[0]}")
    if "concurrent" in result.tags:
        lines.append("concurrent: other work may have run at the same time (allow_concurrent=true)")
    # trials=auto may stop early by itself.
    asked = fewest_trials(result.params.get("trials") or 0)
    if (count := len(result.trials)) < asked:
        lines.append(f"stopped early: {count} of {asked} trials (seconds=)")
    return lines


def _round_caveats(result: Result, sweep: Sequence[Result], *, has_others: bool) -> list[str]:
    """Caveats about the rounds.

    has_others: True if other jobs of the sweep have trials, too.
    """
    lines = []
    if has_others and all(len(names) == 1 for names in result.rounds):
        lines.append(
            "not interleaved: jobs ran one after another, so a disturbance may have slowed one job "
            "only"
        )
    # Trials of several sessions are compared, although the machine may have changed in between.
    sessions = {trial.session_ms for other in sweep for trial in other.trials}
    if len(sessions) > 1:
        lines.append(
            f"resumed: the trials are from {len(sessions)} runs of the command; the machine may "
            "have changed between them"
        )
    return lines


def _benchmark_caveats(result: Result) -> list[str]:
    """Caveats about the times and the losses of each benchmark."""
    lines = []
    for name in result.trials[0].benchmarks:
        measured = measurements(result, name)
        texts = trial_caveats(seconds=[each.seconds for each in measured])
        texts += loss_caveats([each.losses for each in measured])
        lines += [f"{name}: {text}" for text in texts]
    return lines


def _pass_caveats(result: Result, num_workers: int) -> list[str]:
    """Caveats about the waits in the instrumented pass of each benchmark."""
    return [
        f"{name}: {text}"
        for name, attribution in result.attribution.items()
        for text in wait_caveats(wait_s=_waits_of_first_rank(attribution), num_workers=num_workers)
    ]


def option_caveats(job: Job, sample_nbytes: int, num_samples: int) -> list[str]:
    """Caveats that the job's options declare for samples of this number and size."""
    has_model = any(map(runs_model, job.benchmark.values()))
    options = (job.collate, job.model) if has_model else (job.collate,)
    texts = [option.caveat(sample_nbytes) for option in options if isinstance(option, HasCaveat)]
    if isinstance(job.loader, HasRowsCaveat):
        texts.append(job.loader.rows_caveat(num_samples))
    return [text for text in texts if text]


def cache_caveats(result: Result) -> list[str]:
    """Caveats of a job with `cache=cold`; empty for other jobs."""
    if result.params.get("cache") != "cold" or not result.trials:
        return []
    return [line for line in (_not_cold(result), _rereads_memory(result)) if line]


def shuffling_caveats(result: Result, others: Sequence[Result]) -> list[str]:
    """A caveat if the job shuffles less than another job with the same order setting."""
    own = find_shuffling(result)
    same_order = [each for each in others if each.params.get("order") == result.params.get("order")]
    if own and any(shuffles_less(result, other) for other in same_order):
        return [f"shuffles less: {describe_shuffling(own)}"]
    return []


def _above_limit(result: Result) -> list[str]:
    """A caveat for each benchmark without a model that is faster than the limit of loading."""
    figures = metrics(result)
    lines = []
    for name, attribution in result.attribution.items():
        fraction = figures.get(f"{name}/limit_fraction") or 0
        if fraction > ABOVE_LIMIT and not attribution.runs_model:
            origins = [measured.limit_origin for measured in measurements(result, name)]
            origin = typical_origin(origins)
            cause = CAUSES[origin.kind if origin else "rows"]
            share = f"{show_fine_percent(fraction)} of it"
            lines.append(f"{name}: above the limit: {share}, probably because {cause}")
    return lines


def loss_caveats(losses: Sequence[Sequence[float]]) -> list[str]:
    """A caveat if a loss is not a finite number; losses: means of the epochs of each trial."""
    if all(math.isfinite(loss) for trial in losses for loss in trial):
        return []
    return ["loss is not finite: learning_rate is too high, or samples hold NaN or infinity"]


def crowd_caveats(*, num_workers: int, torch_threads: int, usable_cores: int) -> list[str]:
    """A caveat if there are more workers, or more of torch's threads, than cores."""
    crowds = []
    if num_workers > usable_cores:
        crowds += [f"{num_workers} workers"]
    if torch_threads > usable_cores:
        crowds += [f"{torch_threads} torch threads"]
    if not crowds:
        return []
    cores = "1 core" if usable_cores == 1 else f"{usable_cores} cores"
    return [f"CPU oversubscribed: {' and '.join(crowds)} on {cores}"]


def _waits_of_first_rank(attribution: Attribution) -> list[float]:
    """The waits of rank 0."""
    # wait_s holds the waits of all ranks one after the other; each rank has its own workers.
    ranks = attribution.ranks
    return attribution.wait_s[: ranks[0].batches] if ranks else attribution.wait_s


def _not_cold(result: Result) -> str:
    """The caveat of data that was still in memory, or may have been; empty if hardly any was."""
    fractions = [
        measurement.cached_fraction
        for trial in result.trials
        for measurement in trial.benchmarks.values()
    ]
    known = [fraction for fraction in fractions if fraction is not None]
    # The system has no mincore(2), or mincore(2) does not report on these files.
    if not known:
        return "cache=cold: the system does not report whether the data was in memory"
    worst = max(known)
    if worst <= COLD_FRACTION:
        return ""
    return f"cache=cold: {show_fine_percent(worst)} of the data was still in memory"


def _rereads_memory(result: Result) -> str:
    """The caveat of data that only the first epoch of a window reads from the disk; empty if that
    is not so, or unknown."""
    memory_gib = result.environment.get("memory_gib")
    data_mib = result.trials[0].data_mib
    # If the data is larger than memory, an epoch evicts its own first pages, and the next one reads
    # the disk again. Smaller data is in the page cache after the first epoch.
    if result.params.get("epochs") == 1 or not memory_gib or data_mib is None:
        return ""
    if data_mib >= 1024 * memory_gib:
        return ""
    sizes = f"the data ({data_mib:,.1f} MiB) is smaller than memory ({memory_gib:.0f} GiB)"
    return f"{sizes}: at most the first epoch of each window reads the disk"


def data_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """Caveats of the job's data, given the results of all jobs of its sweep."""
    lines = []
    if result.skipped:
        lines.append(f"skipped: {len(result.skipped)} samples, the first: {result.skipped[0]}")
    if "unverified" in result.tags:
        lines.append("unverified: samples were counted but not compared (same_data=false)")
    elif result.random:
        how = "the random generators are seeded by the sample's index"
        lines.append(f"random samples: compared in extra epochs, in which {how}")
    elif result.compared_crops:
        how = f"the pixels of {result.compared_crops} crops an epoch (tolerance {TOLERANCE} of 255)"
        lines.append(f"crops: all labels were compared, and {how}")
    lines += [*_own_data_caveats(result, sweep), *_decoder_caveats(result, sweep)]
    return [*lines, *_batch_size_caveats(result), *_short_batch_caveats(result)]


def _short_batch_caveats(result: Result) -> list[str]:
    """The caveat of epochs of a single batch, with fewer samples than batch_size."""
    size = result.params.get("batch_size")
    if not isinstance(size, int) or not 0 < result.num_samples < size:
        return []
    return [f"one short batch: batch_size={size}, and an epoch has {result.num_samples:,} samples"]


def _own_data_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """The caveat of a loader that brings its own data, with the jobs it can't be ranked with."""
    if not brings_data(result):
        return []
    others = [other for other in sweep if other.trials and other is not result]
    reasons = {
        "deliver other samples": [o for o in others if not delivers_same(result, o)],
        "were compared with a dataset": [
            o for o in others if delivers_same(result, o) and not brings_data(o)
        ],
    }
    parts = [f"not ranked with {len(jobs)} that {why}" for why, jobs in reasons.items() if jobs]
    return ["; ".join(["own data: later epochs were compared with the loader's first one", *parts])]


def _decoder_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """The caveat of jobs that are ranked together although their decoders' pixels differ a
    little."""
    # A dataset without such decoders has an empty id, which equals no other id.
    same_id = result.decoder_equivalence_id
    others = [job for job in sweep if job.trials and same_id == job.decoder_equivalence_id != ""]
    if all(other.content == result.content for other in others):
        return []
    compared = f"{COMPARED_SAMPLES} samples are within {result.pixels_off} of 255 of Pillow's"
    return [f"equivalent decoders: pixels differ between decoders; {compared}"]


def _batch_size_caveats(result: Result) -> list[str]:
    """Caveats of a user's loader that sets the sizes of its batches itself."""
    if result.params.get("batch_size") != LOADER_BATCH_SIZE:
        return []
    lines = []
    # The instrumented pass records one wait per batch, so the waits count the batches.
    for name, attribution in result.attribution.items():
        measurement = measurements(result, name)[0]
        samples, batches = measurement.samples // measurement.epochs, len(attribution.wait_s)
        counts = f"{name}: {batches:,} batches for {samples:,} samples"
        lines.append(f"{counts}, the loader's own batch size")
    return lines


def trial_caveats(*, seconds: Sequence[float]) -> list[str]:
    """Caveats of one job's trials, in the order of the rounds: unstable, drift, outliers."""
    # Times of zero or infinity have no relative deviation and no trend.
    if len(seconds) < 2 or not all(0 < value < math.inf for value in seconds):
        return []
    return [*_unstable_or_outliers(seconds), *_drift(seconds)]


def wait_caveats(*, wait_s: Sequence[float], num_workers: int) -> list[str]:
    """The caveat of one epoch's waits for batches, in order: worker-periodic.

    Batch i comes from worker i modulo num_workers. If the loop waits longer for the batches of one
    worker, this worker is slow, or all workers finish at the same time. The test for a difference
    between workers is Kruskal and Wallis's (1952).
    """
    # The first turn is left out, because all workers start in it.
    turns = len(wait_s) // num_workers - 1 if num_workers > 1 else 0
    if turns < MIN_TURNS:
        return []
    waits = np.asarray(wait_s[num_workers : (turns + 1) * num_workers]).reshape(turns, num_workers)
    # A median ignores a single long wait, which is not a pattern.
    medians = np.median(waits, axis=0)
    slow = int(medians.argmax())
    others = float(np.median(np.delete(waits, slow, axis=1)))
    if medians[slow] <= PERIODIC_FACTOR * others or _same_distribution(waits):
        return []
    slow_ms, others_ms = significant(1e3 * medians[slow], 2), significant(1e3 * others, 2)
    every = f"the loop waits {slow_ms} ms for every {_ordinal(num_workers)} batch"
    return [f"worker-periodic: {every} and {others_ms} ms for the others: one worker may be slower"]


def _unstable_or_outliers(seconds: Sequence[float]) -> list[str]:
    """The caveat of a large standard deviation, or else of outliers."""
    # There is one caveat for both, because outliers alone can make a job unstable.
    share = (stats.std(seconds) or 0.0) / stats.mean(seconds)
    outliers = _count_outliers(seconds)
    if share < UNSTABLE_FRACTION:
        return [f"outliers: {outliers}"] if outliers else []
    cause = f", {outliers} outlier{'s' if outliers > 1 else ''}" if outliers else ""
    return [f"unstable: std {100 * share:.0f} %{cause}"]


def _drift(seconds: Sequence[float]) -> list[str]:
    """The caveat of a trend by Kendall's test (1938), with Theil and Sen's slope as its size."""
    from scipy.stats import kendalltau, theilslopes

    # Two trials can't show a trend, and equal trials have no ranks to correlate.
    if len(seconds) < 3 or min(seconds) == max(seconds):
        return []
    rounds = np.arange(len(seconds))
    p_value = np.asarray(kendalltau(rounds, seconds))[1]
    change = theilslopes(seconds, rounds)[0] * rounds[-1] / stats.median(seconds)
    # A trend may be certain, but too small to matter.
    if p_value >= DRIFT_P or abs(change) < stats.MINIMUM_EFFECT:
        return []
    return [f"drift: {100 * change:+.0f} % from the first round to the last"]


def _count_outliers(seconds: Sequence[float]) -> int:
    """Number of times that are outliers, by Tukey's fences."""
    low, median, high = np.percentile(seconds, [25, 50, 75])
    reach = max(FENCE * (high - low), MIN_FENCE_FRACTION * median)
    return sum(value < low - reach or value > high + reach for value in seconds)


def _same_distribution(waits: np.ndarray) -> bool:
    """True if the workers' waits may have the same distribution, by the test of Kruskal and
    Wallis."""
    from scipy.stats import kruskal

    # kruskal has no answer if all numbers are equal.
    return waits.min() == waits.max() or float(kruskal(*waits.T)[1]) >= 0.001


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
