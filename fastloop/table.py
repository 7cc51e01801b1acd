"""The table that a sweep ends with: seed 000's form, a row a job, 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop import stats
from fastloop.result import Result, measured, metrics

NAME_WIDTH = 23


def format_tables(results: Sequence[Result]) -> str:
    """One table a dataset, its rows ranked by the median seconds of the first benchmark."""
    datasets = dict.fromkeys(result.dataset for result in results)
    return "\n\n".join(_table([r for r in results if r.dataset == name]) for name in datasets)


def _table(results: list[Result]) -> str:
    names = list(
        dict.fromkeys(b for result in results for t in result.trials for b in t.benchmarks)
    )
    ranks = {name: _ranks(results, name) for name in names}
    ended = [result for result in results if result.status == "FINISHED"]
    ended.sort(key=lambda result: ranks[names[0]][result.name])
    lines = [_title(results[0]), ""]
    if ended:
        lines += [_heading(names), *(_row(result, names, ranks) for result in ended)]
        lines += [
            "",
            "mean (std) over trials; limit: share of what this machine can do, measured beside",
        ]
    lines += [_excuse(result) for result in results if result.status != "FINISHED"]
    return "\n".join(lines)


def _title(result: Result) -> str:
    settings = {name: result.params.get(name) for name in ("batch_size", "epochs", "trials")}
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    return (
        f"{result.dataset}: {result.num_samples:,} samples, {shown}, device {result.tags['device']}"
    )


def _heading(names: list[str]) -> str:
    cells = [f"{f'{name}, s':>16} rank  limit" for name in names]
    return f"{'':{NAME_WIDTH}}" + " ".join(cells)


def _row(result: Result, names: list[str], ranks: dict[str, dict[str, int]]) -> str:
    cells = []
    for name in names:
        seconds = [one.seconds for one in measured(result, name)]
        deviation = stats.std(seconds)
        spread = f" ({deviation:.3f})" if deviation is not None else ""
        share = 100 * metrics(result)[f"{name}/limit_fraction"]
        shown = f"{stats.mean(seconds):.3f}{spread}"
        cells.append(f"{shown:>16} {ranks[name][result.name]:>4} {share:>4.1f} %")
    return _beside_name(result, " ".join(cells))


def _excuse(result: Result) -> str:
    return _beside_name(result, f"{result.status}: {result.status_reason}")


def _beside_name(result: Result, text: str) -> str:
    """The text in its column; a name that does not fit in its own has a line of its own."""
    label = _label(result)
    gap = "\n" + " " * NAME_WIDTH if len(label) >= NAME_WIDTH else " " * (NAME_WIDTH - len(label))
    return label + gap + text


def _label(result: Result) -> str:
    """The job's name without the dataset, which the title tells."""
    words = result.name.split(" ")
    return " ".join([words[0], *words[2:]])


def _ranks(results: list[Result], benchmark: str) -> dict[str, int]:
    medians = {
        result.name: stats.median([one.seconds for one in measured(result, benchmark)])
        for result in results
        if result.status == "FINISHED" and measured(result, benchmark)
    }
    return {name: rank for rank, name in enumerate(sorted(medians, key=medians.__getitem__), 1)}
