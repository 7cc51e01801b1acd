"""The table that a sweep ends with: seed 000's form, a row a job, 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop import stats
from fastloop.result import Result, measured, metrics

NAME_WIDTH = 23
CELL_WIDTH = 28


def format_tables(results: Sequence[Result]) -> str:
    """A table for each data and amount of work, ranked by the first benchmark's median seconds."""
    groups: dict[tuple, list[Result]] = {}
    for result in results:
        groups.setdefault(_comparable(result), []).append(result)
    return "\n\n".join(_table(group) for group in groups.values())


def _comparable(result: Result) -> tuple:
    """Only what delivers the same data in the same amount is ranked against each other."""
    epochs, drop_last = result.params.get("epochs"), result.params.get("drop_last")
    return result.dataset, result.fingerprint, epochs, drop_last


def _table(results: list[Result]) -> str:
    names = list(
        dict.fromkeys(b for result in results for t in result.trials for b in t.benchmarks)
    )
    ranks = {name: _ranks(results, name) for name in names}
    ended = [result for result in results if result.status == "FINISHED"]
    ended.sort(key=lambda result: [ranks[name].get(result.name, len(ended)) for name in names])
    lines = [_title(results), ""]
    if ended:
        lines += [_heading(names), *(_row(result, names, ranks) for result in ended)]
        lines += [
            "",
            "mean (std); rank by median; limit: share of what the machine can do, see README",
        ]
    lines += [_excuse(result) for result in results if result.status != "FINISHED"]
    return "\n".join(lines)


def _title(results: list[Result]) -> str:
    """The data, and every setting of note that all rows share."""
    parts = [f"{results[0].num_samples:,} samples"] if results[0].num_samples else []
    for name in ("batch_size", "epochs", "trials"):
        values = {result.params.get(name) for result in results}
        parts += [f"{name} {values.pop()}"] if len(values) == 1 else []
    devices = {result.tags["device"] for result in results}
    parts += [f"device {devices.pop()}"] if len(devices) == 1 else []
    return f"{results[0].dataset}: {', '.join(parts)}"


def _heading(names: list[str]) -> str:
    cells = [f"{f'{name}, s':>16} rank  limit" for name in names]
    return f"{'':{NAME_WIDTH}}" + " ".join(cells)


def _row(result: Result, names: list[str], ranks: dict[str, dict[str, int]]) -> str:
    cells = [_cell(result, name, ranks[name].get(result.name)) for name in names]
    return _beside_name(result, " ".join(cells).rstrip())


def _cell(result: Result, name: str, rank: int | None) -> str:
    if rank is None:  # this job did not run that benchmark
        return " " * CELL_WIDTH
    seconds = [one.seconds for one in measured(result, name)]
    deviation = stats.std(seconds)
    spread = f" ({deviation:.3f})" if deviation is not None else ""
    share = 100 * metrics(result)[f"{name}/limit_fraction"]
    return f"{f'{stats.mean(seconds):.3f}{spread}':>16} {rank:>4} {share:>4.1f} %"


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
