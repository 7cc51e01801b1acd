"""Measure a user's loaders in this process: `fastloop.bench(loader)` measures one,
`fastloop.bench_all({"a": a, "b": b})` compares several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core import stats
from fastloop.core.auto_trials import AUTO, AUTO_SECONDS, most_trials
from fastloop.core.bounds import Trials
from fastloop.core.interleave import rounds
from fastloop.core.machine_load import LoadSummary, LoadWatch
from fastloop.core.ranking import is_decided, rank_jobs
from fastloop.core.spans import Spans
from fastloop.core.time_limits import within
from fastloop.core.trees import find_tensors, read_bytes
from fastloop.core.types import Epochs, Invalid, Leaves, Tree, UnclearCount, UnevenBatches
from fastloop.data.batch_counts import count_epoch
from fastloop.data.digest import (
    describe_difference,
    digest,
    epoch_hashes,
    reference_digest,
    row_nbytes,
)
from fastloop.processes.rank_group import resolve_device
from fastloop.sweep.bench_arguments import check_numbers, check_seconds, check_step, check_trials
from fastloop.sweep.bench_results import Bench, BenchResult
from fastloop.sweep.caveats import trial_caveats
from fastloop.sweep.loader_timer import (
    LoaderLike,
    LoaderTimer,
    SizeOf,
    default_step,
    epochs_of,
    first_batches,
    warm_timer,
)
from fastloop.sweep.progress import announce_rounds, round_reports
from fastloop.trial.job_settings import MIN_WINDOW_S
from fastloop.trial.limits import row_limit
from fastloop.trial.window import time_instrumented_epoch

CountUneven = SizeOf | None
"""Counts the samples of uneven batches, which hold texts or lists or differ in shape (see
UnevenBatches); None: the loader's batches are not uneven."""


@dataclass(frozen=True, kw_only=True)
class _SampleFacts:
    """The facts about a loader's samples that its first epoch shows."""

    num_samples: int
    leaves: Leaves
    """dtype and shape of each leaf of a sample; empty for uneven batches."""
    count_uneven: CountUneven


@dataclass(frozen=True, kw_only=True)
class _ComparedLoaders:
    """The facts about loaders that deliver the same samples, or the same number of samples."""

    num_samples: int
    """Number of samples in an epoch of each loader."""
    counters: Mapping[str, CountUneven]
    """Name of each loader -> the function that counts its uneven batches, or None."""


def bench(  # noqa: PLR0913 - the settings of a run, by their names
    loader: LoaderLike,
    step: Callable[[Tree], Any] | None = None,
    *,
    trials: int = 20,
    epochs: int = 1,
    device: str = "auto",
    batches: int | None = None,
    seconds: float | None = None,
    min_window_s: float = MIN_WINDOW_S,
) -> BenchResult:
    """Time `epochs` epochs of a loader, `trials` times, and measure its waits in one more epoch.

    Two epochs precede the trials: the first counts the samples, the second warms up. All trials run
    in this process; `python -m fastloop.run loader._target_=…` runs each trial in a fresh process.
    A call that takes longer than a moment reports its rounds to stderr. A call that will take
    longer than a minute announces that before the first round.

    Args:
        loader: an iterable of batches, such as a DataLoader, or a function that returns such an
            iterable; it gets the epoch's number if it requires an argument.
        step: called with every batch as the loader yields it. None: a batch is moved to the device
            or, on the CPU, read.
        trials: number of timed windows.
        epochs: number of epochs in a trial.
        device: auto, cpu, mps, cuda or cuda:<number>.
        batches: end each epoch after this many batches; None: whole epochs.
        seconds: begin no trial after the trials have taken this long; None: run all of them.
        min_window_s: repeat the epochs of a trial until its window takes this long; the seconds in
            the result are for `epochs` epochs.

    Batches may hold texts and lists, and be padded to several widths. Raises Invalid for an epoch
    without batches, for batches without a clear number of samples, and for an endless epoch of
    tensors; ValueError for a number below its least value, and for an iterator, which has only one
    epoch; TypeError for a step that is not a function.

    >>> fastloop.bench(DataLoader(dataset, batch_size=64, shuffle=True), trials=5).samples_per_s
    46285.4
    """
    check_numbers(trials=trials, epochs=epochs, batches=batches)
    check_seconds(seconds=seconds, min_window_s=min_window_s)
    check_step(step)
    target = resolve_device(device)
    epoch_of = first_batches(epochs_of(loader), batches)
    first = _look_at_epoch(epoch_of)
    cold = _cold_timer(epoch_of, step, epochs, target, first.num_samples, first.count_uneven)
    timer = warm_timer(cold, min_window_s)
    if seconds is None:
        announce_rounds("bench", trials, timer.window_s)
    trial_s: list[float] = []
    watch = LoadWatch()
    with round_reports(trials, "bench", seconds) as end_round:
        for _ in within(range(trials), seconds):
            trial_s.append(timer.time_window())
            watch.end_stretch()
            end_round()
    load = watch.summary()
    # Waits are timed in their own epoch: reading the clock around each batch costs time.
    spans = Spans()
    epoch_s = time_instrumented_epoch(epoch_of, cold.consume, spans, target).seconds
    limit = None
    if step is None and first.count_uneven is None:
        num_batches = len(spans.seconds("wait"))
        limit = _measure_limit(
            first.num_samples, first.leaves, num_batches, target, stats.median(trial_s)
        )
    return BenchResult(
        seconds=trial_s,
        epochs=int(epochs),  # JSON has no integers of numpy
        repeats=timer.repeats,
        samples=first.num_samples,
        device=str(target),
        wait_s=spans.seconds("wait"),
        epoch_s=epoch_s,
        limit_samples_per_s=limit,
        flags=trial_caveats(seconds=trial_s),
        machine_load=load,
    )


def bench_all(  # noqa: PLR0913 - the settings of a run, by their names
    loaders: Mapping[str, LoaderLike],
    step: Callable[[Tree], Any] | None = None,
    *,
    trials: Trials = 20,
    epochs: int = 1,
    device: str = "auto",
    same_data: bool = True,
    batches: int | None = None,
    seconds: float | None = None,
    min_window_s: float = MIN_WINDOW_S,
) -> Bench:
    """Time `epochs` epochs of each loader, `trials` times in interleaved rounds, and rank them.

    Two epochs of each loader precede the trials: the first checks the data, the second warms up.
    All trials run in this process; `python -m fastloop.run` runs each trial in a fresh process. A
    call that takes longer than a moment reports its rounds to stderr.

    Args:
        loaders: loaders as for `bench`, by their names in the result.
        step: as for `bench`.
        trials: number of rounds. "auto": run rounds until the fastest loader, and all loaders that
            are equally fast, are known; at most 20 rounds, and 120 s if `seconds` is None.
        epochs: number of epochs in a trial.
        device: auto, cpu, mps, cuda or cuda:<number>.
        same_data: False, for random transforms, and for batches of texts, lists or several widths:
            compare only the numbers of samples.
        batches: end each epoch after this many batches; None: whole epochs. Loaders that shuffle
            differently then deliver different samples, which same_data=False allows.
        seconds: begin no round after the rounds have taken this long; None: run all of them.
        min_window_s: repeat the epochs of a trial until its window takes this long; the seconds in
            the result are for `epochs` epochs.

    Raises Invalid if the loaders do not deliver the same samples or, with same_data=False, the same
    number of samples; ValueError for a number below its least value, and for an iterator, which has
    only one epoch; TypeError for a step that is not a function.

    >>> times = fastloop.bench_all({"DataLoader": a, "FastLoader": b}, trials=5)
    >>> times["FastLoader"].rank, times["FastLoader"].samples_per_s
    (1, 352604.1)
    """
    if not isinstance(loaders, Mapping):
        raise ValueError(f"loaders={type(loaders).__name__}: allowed: a dict of loaders by name")
    is_auto = bool(trials == AUTO)  # numpy compares its numbers to a bool of its own
    check_trials(trials)
    check_numbers(loaders=len(loaders), epochs=epochs, batches=batches)
    check_seconds(seconds=seconds, min_window_s=min_window_s)
    check_step(step)
    target = resolve_device(device)
    epochs_by_name = {
        name: first_batches(epochs_of(loader), batches) for name, loader in loaders.items()
    }
    # The data is checked before any trial: a comparison of loaders of different data is useless.
    compared = _check_samples(epochs_by_name, same_data)
    samples = compared.num_samples
    cold = {
        name: _cold_timer(epoch_of, step, epochs, target, samples, compared.counters[name])
        for name, epoch_of in epochs_by_name.items()
    }
    timers = {name: warm_timer(timer, min_window_s) for name, timer in cold.items()}
    order: list[list[str]] = []
    trial_s: dict[str, list[float]] = {name: [] for name in epochs_by_name}
    watch = LoadWatch()
    most = most_trials(trials)
    limit_s = AUTO_SECONDS if is_auto and seconds is None else seconds
    if limit_s is None:
        announce_rounds("bench_all", most, sum(timer.window_s for timer in timers.values()))
    with round_reports(most, "bench_all", limit_s) as end_round:
        for _, names in within(rounds(dict.fromkeys(epochs_by_name, most)), limit_s):
            for name in names:
                trial_s[name].append(timers[name].time_window())
                watch.end_stretch()
            order.append(names)
            end_round()
            # is_decided() tests only after certain numbers of rounds, see core/auto_trials.py.
            if is_auto and is_decided(trial_s):
                break
    return _summarize(trial_s, order, samples, watch.summary(), epochs=epochs, in_looks=is_auto)


def _summarize(
    seconds: dict[str, list[float]],
    order: list[list[str]],
    samples: int,
    load: LoadSummary | None,
    *,
    epochs: int,
    in_looks: bool,
) -> Bench:
    """Rank the loaders by these times, and collect their figures.

    in_looks: True with trials="auto", see rank_jobs.
    """
    base, *others = seconds
    ranking = rank_jobs(seconds, in_looks=in_looks)
    return Bench(
        seconds=seconds,
        rounds=order,
        samples=samples,
        epochs=int(epochs),
        ranking=ranking,
        ratios={
            name: stats.ratio_or_range(seconds[name], seconds[base], look_share=ranking.share)
            for name in others
        },
        flags={name: trial_caveats(seconds=trials) for name, trials in seconds.items()},
        machine_load=load,
    )


def _measure_limit(
    num_samples: int, leaves: Leaves, num_batches: int, device: torch.device, window_s: float
) -> float:
    """Measure the samples/s that this machine can gather and, on a GPU, copy to the device."""
    # A loader may choose the sizes of its batches: the mean counts, rounded up.
    size = -(-num_samples // num_batches)
    nbytes = row_nbytes(leaves)
    reads = device.type == "cpu"
    limit = row_limit(num_samples, nbytes, size, device, reads=reads, window_s=window_s)
    return limit.samples_per_s


def _step_of(
    step: Callable[[Tree], Any] | None, device: torch.device, is_uneven: bool
) -> Callable[[Tree], Any]:
    """The given step or, if it is None, a step that reads the batches' tensors or moves them."""
    # A step may be an object that is false, such as an empty container that can be called.
    if step is not None:
        return step
    # Uneven batches may hold texts and lists, which are not read.
    if is_uneven and device.type == "cpu":
        return lambda batch: read_bytes(find_tensors(batch))
    return default_step(device)


def _look_at_epoch(epoch_of: Epochs) -> _SampleFacts:
    """Read the first epoch of a loader, and describe its samples."""
    try:
        hashes, leaves = epoch_hashes(epoch_of(0), None)
    except UnevenBatches as error:
        count, count_uneven = _count_uneven(epoch_of, error)
        return _SampleFacts(num_samples=count, leaves=(), count_uneven=count_uneven)
    return _SampleFacts(num_samples=len(hashes), leaves=leaves, count_uneven=None)


def _count_uneven(
    epoch_of: Epochs, error: UnevenBatches, at_most: int | None = None
) -> tuple[int, SizeOf]:
    """Number of samples of epoch 0, and a function that counts those of a batch, by `count_epoch`.

    Raises UnevenBatches, with the message of `error`, if a batch has no clear number of samples.
    """
    try:
        return count_epoch(epoch_of(0), at_most)
    except UnclearCount as unclear:
        raise UnevenBatches(f"{error}; {unclear}") from None


def _check_samples(epochs_by_name: Mapping[str, Epochs], same_data: bool) -> _ComparedLoaders:
    """Compare the first epochs of the loaders; raises Invalid if the loaders' samples differ.

    same_data: False compares only the numbers of samples.
    """
    try:
        num_samples = _compare_samples(epochs_by_name, same_data)
        return _ComparedLoaders(num_samples=num_samples, counters=dict.fromkeys(epochs_by_name))
    except UnevenBatches as error:
        if same_data:
            hint = "same_data=False compares only the numbers of samples"
            raise UnevenBatches(f"{error}; {hint}") from None
        return _compare_counts(epochs_by_name, error)


def _compare_counts(epochs_by_name: Mapping[str, Epochs], error: UnevenBatches) -> _ComparedLoaders:
    """Compare only the numbers of samples, for uneven batches; raises Invalid if they differ.

    error: the reason why the samples can't be compared, for messages.
    """
    first, *others = epochs_by_name
    count, count_uneven = _count_uneven(epochs_by_name[first], error)
    counters = {first: count_uneven}
    for name in others:
        other, counters[name] = _count_uneven(epochs_by_name[name], error, at_most=count)
        if other != count:
            reason = f"{other} samples delivered, not {count}"
            raise Invalid(f"{name} does not deliver what {first} does: {reason}")
    return _ComparedLoaders(num_samples=count, counters=counters)


def _compare_samples(epochs_by_name: Mapping[str, Epochs], same_data: bool) -> int:
    """Number of samples in an epoch; raises Invalid if the loaders' samples differ."""
    first, *others = epochs_by_name
    reference = reference_digest(*epoch_hashes(epochs_by_name[first](0), None))
    for name in others:
        try:
            # at_most stops a loader that delivers more than the first one, or that never ends.
            delivered = digest(epochs_by_name[name](0), None, at_most=reference.count)
        except Invalid as error:
            # Without a comparison of the data, uneven batches are counted.
            if isinstance(error, UnevenBatches) and not same_data:
                raise
            raise Invalid(f"{name} does not deliver what {first} does: {error}") from error
        reason = describe_difference(reference, delivered)
        same_count = delivered.count == reference.count
        if reason and (same_data or not same_count):
            hint = "; same_data=False allows it" if same_count else ""
            raise Invalid(f"{name} does not deliver what {first} does: {reason}{hint}")
    return reference.count


def _cold_timer(
    epoch_of: Epochs,
    step: Callable[[Tree], Any] | None,
    num_epochs: int,
    device: torch.device,
    samples: int,
    count_uneven: CountUneven,
) -> LoaderTimer:
    """The timer of a loader before its warm-up."""
    return LoaderTimer(
        epochs=epoch_of,
        consume=_step_of(step, device, is_uneven=count_uneven is not None),
        num_epochs=num_epochs,
        device=device,
        samples=samples,
        size_of=count_uneven,
    )
