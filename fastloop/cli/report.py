"""fastloop report: write a report on a sweep: HTML page, Markdown, pictures, CSV.

    fastloop report [sweep=<date>/<time>|sweep=last|folder=<path>] [--open]
                    [baseline=<job or loader>] [format=md,html,png,csv]

The default is the newest sweep in the outputs folder that has a finished job. --open opens
the page in a browser. A sweep that is not in the outputs folder is looked up in MLflow. The files
are written to report/ in the folder of the results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.arguments import parse_settings
from fastloop.core.outputs_folder import outputs_folder, sweep_folders
from fastloop.core.passwords import without_passwords
from fastloop.core.result_io import RESULT_FILE, load_results, load_timelines
from fastloop.core.text import first_line, shorten_words
from fastloop.core.types import UsageError
from fastloop.reporting.report_files import parse_formats, write_report

if TYPE_CHECKING:
    from fastloop.core.result import Result

DEFAULTS = {"sweep": "", "folder": "", "baseline": "", "format": "", "open": "false"}
LAST = "last"


def main() -> None:
    """Write the report and print the paths of its files; exits with 1 and one line on failure."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    try:
        given = ["open=true" if each == "--open" else each for each in sys.argv[1:]]
        settings = parse_settings(given, DEFAULTS)
        if settings["open"] not in ("true", "false"):
            raise UsageError(f"open={settings['open']}: allowed: true, false")
        formats = parse_formats(settings["format"])
        if settings["open"] == "true" and "html" not in formats:
            asked = f"format={settings['format']}"
            raise UsageError(f"--open: {asked} writes no page; allowed: {asked},html")
        results, folder = _find_results(settings["sweep"], settings["folder"])
        timelines = load_timelines(folder)
        paths = write_report(results, folder / "report", settings["baseline"], formats, timelines)
    except (UsageError, ValueError, OSError) as error:
        sys.exit(shorten_words(str(error)))
    for path in paths:
        print(path)
    if settings["open"] == "true":
        _open_page(paths)


def _open_page(paths: Sequence[Path]) -> None:
    """Open the page in a browser; exits with 1 and one line if there is none."""
    import webbrowser

    (page,) = (path for path in paths if path.suffix == ".html")
    if not webbrowser.open(page.absolute().as_uri()):
        sys.exit(f"--open: there is no browser; the page is {page}")


def _find_results(sweep: str, folder: str) -> tuple[list[Result], Path]:
    """Find the results of a sweep, given by its name or its folder: (results, folder).

    If both are empty, the newest sweep is taken. For results from MLflow, the folder may not exist.
    """
    if sweep and folder:
        raise UsageError(f"sweep={sweep} folder={folder}: set only one of them")
    if folder:
        return load_results(Path(folder), "folder"), Path(folder)
    if sweep in ("", LAST):
        return newest_results()
    sweep_folder = outputs_folder() / sweep
    if sweep_folder.is_dir() and any(sweep_folder.rglob(RESULT_FILE)):
        return load_results(sweep_folder, "sweep"), sweep_folder
    return _results_in_mlflow(sweep), sweep_folder


def newest_results() -> tuple[list[Result], Path]:
    """(results, folder) of the newest sweep with a finished job.

    If no sweep has a finished job, those of the newest sweep. Raises UsageError if there are no
    results.
    """
    sweeps = [path for path in sweep_folders() if any(path.rglob(RESULT_FILE))]
    if not sweeps:
        raise UsageError(f"no results in {outputs_folder()}; python -m fastloop.run produces some")
    newest: list[Result] = []
    for folder in reversed(sweeps):
        results = load_results(folder, "sweep")
        newest = newest or results
        if any(result.status == "FINISHED" for result in results):
            if folder != sweeps[-1]:
                skipped = "/".join(sweeps[-1].parts[-2:])
                reason = "none of its jobs has finished; this is the last one before"
                print(f"sweep={skipped}: {reason}", file=sys.stderr)
            return results, folder
    return newest, sweeps[-1]


def _results_in_mlflow(sweep: str) -> list[Result]:
    """Load the results of a sweep from MLflow; raises UsageError if it has none."""
    from fastloop.options.tracker._load_results import load_sweep_results

    try:
        results = load_sweep_results(sweep)
    # A server that can't be reached, or is another program, may raise anything.
    except Exception as error:
        reason = without_passwords(first_line(error) or type(error).__name__)
        raise UsageError(f"sweep={sweep}: not in {outputs_folder()}; MLflow: {reason}") from error
    if not results:
        newest = ", ".join("/".join(path.parts[-2:]) for path in sweep_folders()[-3:]) or "none"
        raise UsageError(
            f"sweep={sweep}: neither in {outputs_folder()} nor in MLflow; the newest: {newest}"
        )
    return results
