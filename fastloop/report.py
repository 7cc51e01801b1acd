"""python -m fastloop.report: a sweep's tables and pictures as a page, Markdown, pictures, CSV.

    python -m fastloop.report [sweep=<date>/<time>|folder=<path>] [baseline=<job or loader>]
                              [format=md,html,png,csv]

The newest sweep under the outputs folder unless one is named; a sweep that is not there is looked
for in MLflow. The files go into report/ in the folder of the results.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.arguments import parse, results_below
from fastloop.files import locked, outputs_folder, sweep_folders, written_beside
from fastloop.refusal import Refused

if TYPE_CHECKING:
    from fastloop.result import Result

FORMATS = ("md", "html", "png", "csv")
COLUMNS = (
    "job", "loader", "dataset", "benchmark", "round", "seconds", "samples_per_s", "limit_fraction",
    "sweep",
)  # fmt: skip


def main() -> None:
    """Write the report and print the paths; exits with 1, and one line, where that can't be."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    try:
        settings = parse(sys.argv[1:], {"sweep": "", "folder": "", "baseline": "", "format": ""})
        formats = _formats(settings["format"])
        results, folder = _found(settings["sweep"], settings["folder"])
        paths = write_report(results, folder / "report", settings["baseline"], formats)
    except (Refused, ValueError, OSError) as why:
        sys.exit(str(why))
    for path in paths:
        print(path)


def write_report(
    results: Sequence[Result],
    folder: Path,
    baseline: str = "",
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """The paths of the report's files; all is made before the first is written.

    Raises ValueError for a baseline that no finished job or loader has.
    """
    from fastloop.reporting.document import compose
    from fastloop.reporting.markdown import markdown
    from fastloop.reporting.page import page
    from fastloop.reporting.summary import check_baseline

    check_baseline(results, baseline)
    document = compose(results, baseline)
    made: dict[str, bytes] = {}
    if "html" in formats:
        made["report.html"] = page(document).encode()
    if "md" in formats:
        made["report.md"] = markdown(document, pictures_beside="png" in formats).encode()
    if "csv" in formats:
        made["report.csv"] = trials_csv(results).encode()
    if "png" in formats:
        drawn = [picture for section in document.sections for picture in section.pictures]
        made |= {f"{picture.name}.png": picture.png() for picture in drawn}
    with locked(folder):
        return [_write(folder / name, content) for name, content in made.items()]


def trials_csv(results: Sequence[Result]) -> str:
    """A row for each trial and benchmark of every job, whatever became of the job."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        for trial in result.trials:
            for name, one in trial.benchmarks.items():
                share = one.samples_per_s / one.limit_samples_per_s
                figures = (trial.number + 1, one.seconds, one.samples_per_s, share)
                sweep = result.tags.get("sweep", "")
                writer.writerow([result.name, result.loader, result.dataset, name, *figures, sweep])
    return out.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with written_beside(path) as beside:
        beside.write_bytes(content)
    return path


def _formats(asked: str) -> tuple[str, ...]:
    wanted = tuple(asked.split(",")) if asked else FORMATS
    for one in wanted:
        if one not in FORMATS:
            raise Refused(f"format={asked}: no such format {one!r}; allowed: {','.join(FORMATS)}")
    return wanted


def _found(sweep: str, folder: str) -> tuple[list[Result], Path]:
    """The results asked for, and the folder that the report goes into."""
    if sweep and folder:
        raise Refused(f"sweep={sweep} folder={folder}: name one of them")
    if folder:
        return results_below(Path(folder), "folder"), Path(folder)
    if not sweep:
        newest = _newest_sweep()
        return results_below(newest, "sweep"), newest
    below = outputs_folder() / sweep
    if below.is_dir() and any(below.rglob("result.json")):
        return results_below(below, "sweep"), below
    return _from_mlflow(sweep), below


def _newest_sweep() -> Path:
    sweeps = [path for path in sweep_folders() if any(path.rglob("result.json"))]
    if not sweeps:
        raise Refused(
            f"sweep=: no results in {outputs_folder()}; python -m fastloop.run makes some"
        )
    return sweeps[-1]


def _from_mlflow(sweep: str) -> list[Result]:
    from fastloop.trackers.mlflow import recorded_results

    try:
        results = recorded_results(sweep)
    except Exception as error:  # whatever a lost or foreign server makes of it
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refused(f"sweep={sweep}: not in {outputs_folder()}; MLflow: {said}") from error
    if not results:
        newest = ", ".join("/".join(path.parts[-2:]) for path in sweep_folders()[-3:]) or "none"
        raise Refused(
            f"sweep={sweep}: neither in {outputs_folder()} nor in MLflow; the newest: {newest}"
        )
    return results


if __name__ == "__main__":
    main()
