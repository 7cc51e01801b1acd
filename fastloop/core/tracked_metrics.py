"""`metrics`: computes the metrics that are logged to MLflow from the raw values of a result."""

from __future__ import annotations

from fastloop.core import stats
from fastloop.core.explanation import Explanation
from fastloop.core.result import Attribution, Result, measurements, world_size

RESOURCE_METRICS = (
    "peak_pss_mib",
    "peak_shm_mib",
    "peak_gpu_mib",
    "context_switches",
    "read_mib",
)
"""Metrics of the whole instrumented process; cpu_cores covers the epochs of one benchmark only."""


def metrics(result: Result) -> dict[str, float]:
    """All metrics for which the result has raw values, by their names in MLflow."""
    figures: dict[str, float | None] = {
        # Without a store both are 0, and MLflow's page would begin with empty charts.
        "prepare/seconds": result.prepare_s or None,
        "prepare/disk_mib": result.disk_mib or None,
        "skipped_samples": float(len(result.skipped)) if result.skipped else None,
    }
    for benchmark in dict.fromkeys(name for trial in result.trials for name in trial.benchmarks):
        for name, value in _benchmark_metrics(result, benchmark).items():
            figures[f"{benchmark}/{name}"] = value
    if result.explanation:
        figures |= _explanation_metrics(result.explanation)
    return {name: value for name, value in figures.items() if value is not None}


def _benchmark_metrics(result: Result, benchmark: str) -> dict[str, float | None]:
    """Metrics of the timed windows, and those of the benchmark's instrumented pass."""
    windows = measurements(result, benchmark)
    seconds = [window.seconds for window in windows]
    samples_per_s = stats.median([window.samples_per_s for window in windows])
    fractions = [window.limit_fraction for window in windows]
    limit_fractions = [each for each in fractions if each is not None]
    figures: dict[str, float | None] = {
        "seconds_mean": stats.mean(seconds),
        "seconds_std": stats.std(seconds),
        "seconds_median": stats.median(seconds),
        "samples_per_s": samples_per_s,
        "bytes_per_s": samples_per_s * result.sample_nbytes,
        "limit_fraction": stats.median(limit_fractions) if limit_fractions else None,
    }
    if result.one_process.get(benchmark):
        ideal = stats.median(result.one_process[benchmark]) * world_size(result)
        figures["scaling_efficiency"] = samples_per_s / ideal
    if losses := windows[0].losses:
        figures |= {"loss_first": losses[0], "loss_last": losses[-1]}
    if benchmark in result.attribution:
        figures |= _attribution_metrics(result, benchmark)
    return figures


def _attribution_metrics(result: Result, benchmark: str) -> dict[str, float | None]:
    """Metrics of the instrumented pass; the result has one for this benchmark."""
    pass_ = result.attribution[benchmark]
    waits_ms = [1e3 * wait for wait in pass_.wait_s]
    bare_epoch_s = stats.median(
        [window.seconds / window.epochs for window in measurements(result, benchmark)]
    )
    figures: dict[str, float | None] = {
        f"wait_p{percent}_ms": stats.percentile(waits_ms, percent) for percent in (50, 95, 99)
    }
    figures["first_batch_s"] = pass_.first_batch_s
    figures["cpu_cores"] = _cpu_cores(result, pass_)
    for name in RESOURCE_METRICS:
        figures[name] = getattr(pass_.resources, name, None)
    figures["instrumented_ratio"] = pass_.seconds / bare_epoch_s
    if pass_.runs_model:
        figures["stall_fraction"] = pass_.stall_fraction
    if pass_.ranks:
        loading_s = [rank.loading_s for rank in pass_.ranks]
        figures["straggler_index"] = (
            max(loading_s) / stats.mean(loading_s) if any(loading_s) else 1.0
        )
    if pass_.step_s and pass_.local_step_s:
        figures["sync_fraction"] = 1 - pass_.local_step_s / pass_.step_s
    return figures


def _cpu_cores(result: Result, pass_: Attribution) -> float | None:
    """Cores that were busy with the job; None if too little time was observed."""
    # Older files have no usable_cores in the pass, which caps the figure: the machine's number is
    # used instead, but not for several ranks, which may have run on several machines.
    cores, usable = pass_.cpu_cores, result.environment.get("cores_usable")
    if cores is None or pass_.usable_cores or not usable or world_size(result) > 1:
        return cores
    return min(cores, usable)


def _explanation_metrics(explanation: Explanation) -> dict[str, float | None]:
    """Metrics of the ladder, and of the best change that was tried."""
    ladder = explanation.ladder
    # The changes that were tried come first, by gain. If no gain is beyond noise, the first of them
    # is used.
    tried = (each for each in explanation.what_ifs if each.realised_gain)
    best = explanation.best or next(tried, None)
    figures: dict[str, float | None] = {
        "ceiling_seconds": ladder.perfect_s.value,
        "exposed_wait_fraction": ladder.wait_share.value,
        **{f"{row.rung}_fraction": row.share.value for row in ladder.rows},
    }
    if best and best.realised_gain:
        predicted = best.predicted_gain
        figures["predicted_gain"] = predicted.value if predicted else None
        figures["realised_gain"] = best.realised_gain.value
    return {f"explain/{name}": value for name, value in figures.items()}
