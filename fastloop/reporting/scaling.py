"""What several processes come to: each rank's seconds and waits, and what one alone does."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop import stats
from fastloop.reporting.sheets import NOTHING, Sheet
from fastloop.result import Result, measured, metrics, world_size

HEAD = ("", "processes", "seconds by rank", "waits by rank, s", "straggler", "scaling", "gradients")
NOTE = (
    "seconds: median over trials of each rank's own window; a trial takes as long as the slowest. "
    "waits: for batches and their placement, in one epoch. straggler: the longest of these waits / "
    "their mean. scaling: samples/s / (processes x samples/s of one process). gradients: the share "
    "of a step, on batches at hand, that averaging them over the ranks takes."
)


def ranks_sheet(results: Sequence[Result]) -> Sheet | None:
    """A row a benchmark of each job of several processes; None without any."""
    rows = [
        (f"{one.name}: {name}", *_cells(one, name))
        for one in results
        if world_size(one) > 1 and one.trials
        for name in one.trials[0].benchmarks
    ]
    return Sheet(heading="Ranks", head=HEAD, rows=tuple(rows), note=NOTE) if rows else None


def told_of_ranks(result: Result) -> list[str]:
    """The same for a terminal, a text a benchmark; empty for one process."""
    if world_size(result) == 1 or not result.trials:
        return []
    return [
        f"{name}: {', '.join(_worded(_cells(result, name)))}"
        for name in result.trials[0].benchmarks
    ]


def _worded(cells: Sequence[str]) -> list[str]:
    words = ("{} ranks", "{} s", "waits {} s", "straggler {}", "scaling {}", "gradients {}")
    told = zip(words, cells, strict=True)
    return [word.format(cell) for word, cell in told if cell != NOTHING]


def _cells(result: Result, benchmark: str) -> tuple[str, ...]:
    figures = metrics(result)
    by_rank = zip(*[one.rank_seconds for one in measured(result, benchmark)], strict=True)
    seen = result.attribution.get(benchmark)
    waits = [one.loading_s for one in seen.ranks] if seen else []
    told = {name: figures.get(f"{benchmark}/{name}") for name in ("straggler_index", *SHARES)}
    index = told.pop("straggler_index")
    return (
        str(world_size(result)),
        _listed([stats.median(list(one)) for one in by_rank]),
        _listed(waits),
        NOTHING if index is None else f"{index:.2f}",
        *(NOTHING if share is None else f"{100 * share:.0f} %" for share in told.values()),
    )


SHARES = ("scaling_efficiency", "sync_fraction")


def _listed(seconds: Sequence[float]) -> str:
    return " ".join(f"{one:.3g}" for one in seconds) or NOTHING
