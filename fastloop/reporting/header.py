"""Describe the settings of jobs and the load of the machine, for the head of a table or report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastloop.core.auto_trials import AUTO
from fastloop.core.load_text import load_text
from fastloop.core.machine_load import Load, summarize_loads
from fastloop.core.result import Result


def describe_setup(results: Sequence[Result]) -> str:
    """A line with the settings of the jobs, such as samples, batch size, trials and device.

    Jobs without trials are left out, unless none has any. Different values of one setting are
    joined by `and`. The loader is named only if all of several jobs have the same one.
    """
    parts: dict[str, Callable[[Result], object]] = {
        "loader": _common_loader(results),
        "samples": describe_samples,
        "size": lambda result: _format_size(result.params.get("dataset.size")),
        "decoder": lambda result: result.params.get("decoder"),
        "order": _describe_order,
        "batch size": lambda result: result.params.get("batch_size"),
        "epochs per trial": lambda result: result.params.get("epochs"),
        "batches of an epoch": lambda result: result.params.get("batches"),
        "trials": show_trials,
        "device": lambda result: result.tags.get("device"),
        "sweep": lambda result: result.tags.get("sweep"),
    }
    measured = [result for result in results if result.trials] or results
    values = {name: [value(result) for result in measured] for name, value in parts.items()}
    return " · ".join(
        f"{name} {_join(given)}"
        for name, of_jobs in values.items()
        if (given := [str(value) for value in of_jobs if value not in (None, "", "None")])
    )


def show_trials(result: Result) -> object:
    """The setting `trials`; for auto, the number of trials that ran as well."""
    trials = result.params.get("trials")
    return f"{len(result.trials)} ({AUTO})" if trials == AUTO else trials


def describe_samples(result: Result) -> str:
    """Number of samples, `50 of 1,000` if an epoch delivers fewer; empty if it is unknown."""
    windows = [window for trial in result.trials for window in trial.benchmarks.values()]
    total = f"{result.num_samples:,}" if result.num_samples else ""
    if not windows or not total:
        return total
    delivered = windows[0].samples // windows[0].epochs
    return total if delivered == result.num_samples else f"{delivered:,} of {total}"


def _common_loader(results: Sequence[Result]) -> Callable[[Result], object]:
    """A function that returns the loader of a result if several results all share it, else None."""
    is_shared = len(results) > 1 and len({result.loader for result in results}) == 1
    return lambda result: result.loader if is_shared else None


def _describe_order(result: Result) -> str:
    """The order with its settings, such as `subset (fraction 0.1)`."""
    settings = [
        f"{name.removeprefix('order.')} {value}"
        for name, value in result.params.items()
        if name.startswith("order.") and value is not None and not name.endswith("_target_")
    ]
    order = str(result.params.get("order") or "")
    return f"{order} ({', '.join(settings)})" if order and settings else order


def _format_size(size: object) -> str:
    return " x ".join(str(length) for length in size) if isinstance(size, list | tuple) else ""


def _join(values: Sequence[str]) -> str:
    *others, last = dict.fromkeys(values)
    return f"{', '.join(others)} and {last}" if others else last


def load_lines(results: Sequence[Result]) -> list[str]:
    """A line on the load of each machine that ran trials, with its name if there are several.

    Empty for results of earlier versions, which have no record of the load.
    """
    by_host: dict[str, list[Load | None]] = {}
    for result in results:
        host = str(result.environment.get("host", ""))
        by_host.setdefault(host, []).extend(trial.load for trial in result.trials)
    summaries = {host: summarize_loads(loads) for host, loads in by_host.items()}
    sentences = {host: load_text(summary) for host, summary in summaries.items() if summary}
    if len(sentences) < 2:
        return [*sentences.values()]
    return [f"{host}: {sentence}" for host, sentence in sentences.items()]
