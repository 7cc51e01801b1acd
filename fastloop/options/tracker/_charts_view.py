"""The view of MLflow's charts that a sweep's link opens: the runs of the sweep, the fastest first,
and up to four charts.

MLflow's page restores a view from a tag of the experiment, `mlflow.sharedViewState.<key>`, if its
address has `viewStateShareKey=<key>`; the tag holds JSON, compressed or not. The button "Share" of
that page writes the same kind of tag (mlflow/server/js, useSharedExperimentViewState.ts and
ExperimentPageUIState.tsx). Parts that are left out have MLflow's defaults.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from fastloop.options.tracker._client import filter_of_finished_runs

TAG_PREFIX = "mlflow.sharedViewState."
MOST_RUNS = 20
"""Number of runs that are drawn, the fastest of all. MLflow's page offers no larger number, except
all runs."""
SECTION = "Comparison"
"""Title of the section with the charts."""
PREFERRED = ("training", "inference", "traversal")
"""Benchmarks in order of preference. The first one that has run is the main benchmark: its seconds,
waits and memory are drawn."""


@dataclass(frozen=True, kw_only=True)
class ChartsView:
    """A view of MLflow's page, as a tag of the experiment."""

    key: str
    """The view's name in the page's address."""
    text: str
    """Value of the tag."""

    @property
    def tag(self) -> str:
        """Name of the tag."""
        return TAG_PREFIX + self.key


def charts_view(sweep: str, metric_names: Iterable[str]) -> ChartsView:
    """The view of a sweep's finished runs, sorted by the seconds of their trials.

    Jobs that could not run have no figures and are left out. All metrics except those of the charts
    are in sections that open with a click, named by the first part of the metric's name.
    """
    names = sorted(metric_names)
    charted = metrics_of_charts(names)
    main = _main_benchmark(names)
    order = {"orderByKey": f"metrics.`{main}/seconds_median`", "orderByAsc": True} if main else {}
    groups = sorted({name.partition("/")[0] for name in names if "/" in name})
    sections = [
        _section(SECTION, is_open=True),
        *(_section(name, is_open=False) for name in groups),
    ]
    view = {
        "searchFilter": filter_of_finished_runs(sweep),
        **order,
        "compareRunCharts": [_bar_chart(name) for name in charted],
        "compareRunSections": sections,
        # Otherwise the page sorts the sections by name.
        "isAccordionReordered": True,
        "runsHiddenMode": f"FIRST_{MOST_RUNS}_RUNS",
        "hideEmptyCharts": True,
    }
    plain = json.dumps(view, separators=(",", ":")).encode()
    # MLflow's page takes both. Compressed, the tags of a hundred sweeps need 100 KB instead of 250.
    compressed = b64encode(zlib.compress(plain, 9)).decode()
    return ChartsView(key=sha256(plain).hexdigest()[:12], text=f"deflate;{compressed}")


def metrics_of_charts(names: Sequence[str]) -> list[str]:
    """The metrics that the page opens with, if they exist.

    >>> metrics_of_charts(["traversal/seconds_median", "traversal/samples_per_s", "prepare/s"])
    ['traversal/samples_per_s']
    """
    main = _main_benchmark(names)
    rates = "traversal" if any(name.startswith("traversal/") for name in names) else main
    wanted = [f"{rates}/samples_per_s", f"{main}/wait_p95_ms", f"{main}/peak_pss_mib"]
    # MLflow writes two decimals beside a bar: a traversal of less than 5 ms would show as 0.00 s.
    if main != "traversal":
        wanted.insert(0, f"{main}/seconds_median")
    return [name for name in wanted if name in names]


def _main_benchmark(names: Sequence[str]) -> str | None:
    """The first benchmark of PREFERRED that has run; None if none has run."""
    benchmarks = {name.partition("/")[0] for name in names}
    return next((name for name in PREFERRED if name in benchmarks), None)


def charts_address(experiment_id: str, view: ChartsView) -> str:
    """The part of the page's address that follows the server's address."""
    query = {
        "viewStateShareKey": view.key,
        "compareRunsMode": "CHART",
        "workflowType": "machine_learning",
    }
    return f"#/experiments/{experiment_id}/runs?{urlencode(query)}"


def _bar_chart(metric: str) -> dict[str, Any]:
    return {
        "uuid": f"fastloop-chart-{metric}",
        "type": "BAR",
        "metricKey": metric,
        "metricSectionId": _section_id(SECTION),
        "runsCountToCompare": MOST_RUNS,
        "deleted": False,
        "isGenerated": False,
    }


def _section(name: str, *, is_open: bool) -> dict[str, Any]:
    section = {
        "uuid": _section_id(name),
        "name": name,
        "display": is_open,
        "isReordered": False,
        "deleted": False,
        "isGenerated": not is_open,
    }
    # Charts are one below the other. Beside another chart, a title is cut to its first word, on a
    # screen of 1,280 pixels with MLflow's assistant, which is open at first. The first word is the
    # benchmark's name, and does not distinguish the charts.
    return section | {"columns": 1, "cardHeight": 320} if is_open else section


def _section_id(name: str) -> str:
    return f"fastloop-section-{name}"
