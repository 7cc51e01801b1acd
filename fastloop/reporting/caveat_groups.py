"""Group the caveats of several jobs by kind, for the notes below a table.

A caveat is a line that limits the meaning of a job's figures, such as `unstable: std 11 %`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastloop.core.result import Result
from fastloop.reporting.short_names import short_names


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """A kind of caveat, such as `unstable`, and each job's details of it."""

    kind: str
    """The words of the caveat before its details."""
    details: dict[str, str]
    """Short name of a job -> the details of the job's caveat; empty if the kind says everything."""

    @property
    def text(self) -> str:
        """The names of the jobs with their details, which are given once if all are equal."""
        if len(set(self.details.values())) == 1:
            names = ", ".join(self.details)
            detail = next(iter(self.details.values()))
            return f"{names} ({detail})" if detail else names
        return ", ".join(
            f"{name} ({detail})" if detail else name for name, detail in self.details.items()
        )


def group_caveats(results: Sequence[Result]) -> list[Caveat]:
    """Group the caveats of these results by kind, in the order in which the kinds first occur.

    If the results have several benchmarks, the details of a benchmark's caveat begin with that
    benchmark.
    """
    grouped: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    names = short_names(results)
    benchmarks = {
        name for result in results for trial in result.trials for name in trial.benchmarks
    }
    for result in results:
        for caveat in result.caveats:
            benchmark, kind, detail = _split(caveat, benchmarks)
            parts = (benchmark if len(benchmarks) > 1 else "", detail)
            grouped[kind][names[result.name]].append(": ".join(filter(None, parts)))
    return [
        Caveat(kind=kind, details={name: "; ".join(each) for name, each in details.items()})
        for kind, details in grouped.items()
    ]


def _split(caveat: str, benchmarks: Iterable[str]) -> tuple[str, str, str]:
    """Benchmark, kind and details of a caveat of the form `[benchmark: ]kind[: details]`."""
    benchmark = next((name for name in benchmarks if caveat.startswith(f"{name}: ")), "")
    prefix = f"{benchmark}: " if benchmark else ""
    kind, _, detail = caveat.removeprefix(prefix).partition(": ")
    return benchmark, kind, detail
