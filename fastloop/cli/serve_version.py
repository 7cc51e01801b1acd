"""Measure the jobs of one version, trial by trial, for `fastloop check against=`.

The command runs this file by its path, in a process for each version:
python serve_version.py <descriptor of the connection>
The process imports fastloop and the user's modules from its own interpreter and PYTHONPATH, and so
measures that version. fastloop/sweep/version_process.py describes the messages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import files, version
from importlib.util import find_spec
from inspect import getmodulename
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastloop.sweep.job_state import JobState
    from fastloop.sweep.request import JobRequest
    from fastloop.sweep.run_rounds import RunRound

OFTEN_ADDED = {"tests", "test", "docs", "examples", "benchmarks", "scripts"}
"""Folders of a project that many wheels contain by mistake. A user's folder may contain folders of
the same name, which are no other version of the package."""


def serve_version(connection: Connection) -> None:
    """Receive the plan, compose the jobs, and run the trials that the command asks for.

    If the version can't be measured, sends a line with the reason instead.
    """
    from fastloop.processes.parent_death import die_with_parent
    from fastloop.processes.signals import handle_signals_silently

    die_with_parent()
    plan = _receive(connection)
    handle_signals_silently()
    requests, reason = _compose(plan["words"])
    reason = reason or _find_foreign_module(plan["forbidden_folder"], plan["tree"])
    reason = reason or find_foreign_package(plan["package"], plan["package_version"])
    # If the base can't run any job, there is nothing to compare. If only the new version can't run
    # a job, that is an answer, and the job's row has the reason.
    if plan["is_base"]:
        reason = reason or explain_no_job(requests)
    if reason:
        _send(connection, {"error": reason.strip().splitlines()[-1]})
        return
    _run_jobs(requests, Path(plan["folder"]), connection)


def _compose(words: Sequence[str]) -> tuple[list[JobRequest], str]:
    """Compose the jobs of these arguments of `fastloop run`. Returns (the requests, an error
    message that is empty on success)."""
    from fastloop.config.check_files import withheld_environment
    from fastloop.config.compose import compose_silently

    sys.argv[1:] = words
    with withheld_environment():
        requests, reason = compose_silently()
    if not reason and (not requests or requests[0].is_done):
        reason = f"job: {' '.join(words)}: allowed: what fastloop run measures here"
    return requests, reason


def explain_no_job(requests: Sequence[JobRequest]) -> str:
    """The reason why none of the jobs can run here, such as a missing environment; else empty."""
    # An older fastloop, as the base, has no such function. Its jobs report reasons when they run.
    try:
        from fastloop.sweep.early_check import reason_against
    except ImportError:
        return ""
    reasons = [reason_against(each.job, each.launcher) for each in requests]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


def _find_foreign_module(forbidden_folder: str, tree: str) -> str:
    """A line about a module that was imported from the other version's folder; empty without one.

    An editable installation, for example, may lead there. forbidden_folder: the other version's
    folder; empty: there is none. tree: the folder of this version.
    """
    if not forbidden_folder:
        return ""
    for name, module in [*sys.modules.items()]:
        # Some modules of torch have a relative path in `__file__`, although they have no file.
        path = Path(getattr(module, "__file__", None) or "")
        is_other = path.is_relative_to(forbidden_folder) and not path.is_relative_to(tree)
        # This file itself always comes from the fastloop of the command, for either version.
        is_other = is_other and name not in ("__main__", "__mp_main__")
        if is_other and "site-packages" not in path.parts:
            return f"{name} is imported from {path} and not from this version"
    return ""


def find_foreign_package(package: str, package_version: str) -> str:
    """A line that says from where this process would import another version of the package than
    its environment's; empty if it would not.

    package_version: the environment's version; empty: any version is allowed.
    """
    if not package_version:
        return ""
    if (found := version(package)) != package_version:
        return f"{package} {found} is imported: PYTHONPATH has it before the version's environment"
    # Modules in a folder that is not an installation, such as a checkout, have no version number.
    # Therefore the path of each module is checked, too.
    for name in _top_modules(package) - OFTEN_ADDED:
        origin = _origin(name)
        if origin and not Path(origin).is_relative_to(sys.prefix):
            hint = "use a folder without it, also on PYTHONPATH"
            return f"{name} is imported from {origin} and not from this version: {hint}"
    return ""


def _top_modules(package: str) -> set[str]:
    """Dotted names of the outermost modules and packages that the installed package contains."""
    installed = [each for each in files(package) or () if ".." not in each.parts]
    folders = {each.parent for each in installed if each.name == "__init__.py"}
    tops = [each for each in folders if not folders & {*each.parents}]
    modules = [getmodulename(each.name) for each in installed if len(each.parts) == 1]
    return {".".join(each.parts) for each in tops} | {each for each in modules if each}


def _origin(name: str) -> str | None:
    """The path from which the module would be imported; None if it is not known."""
    # find_spec imports the namespace package of a dotted name, which may fail if another package
    # hides the namespace. It raises ValueError for an imported module that has no __spec__.
    with suppress(ImportError, ValueError):
        return getattr(find_spec(name), "origin", None)
    return None


def _run_jobs(requests: Sequence[JobRequest], folder: Path, connection: Connection) -> None:
    """Run trials of all jobs as one sweep; the command that started this process schedules them."""
    from dataclasses import replace

    from fastloop.sweep.progress import Progress
    from fastloop.sweep.tracking import SweepTracker

    # An older fastloop, as the base, has these functions in the modules that are named second.
    job_names = _find_function("job_names", "fastloop.sweep.job_names", "fastloop.sweep.request")
    run_sweep = _find_function("run_sweep", "fastloop.sweep.run_rounds", "fastloop.sweep.rounds")
    sweep_job = _find_function("sweep_job", "fastloop.sweep.sweep_job", "fastloop.sweep.measure")

    def schedule(states: Sequence[JobState], run_round: RunRound) -> list[JobState]:
        # The first trial of a job compares all of its data with the dataset. Its times don't count.
        for state in states:
            state.shadow_number = 0
        run_round(states, None)
        _send(connection, {"ready": [state.result.name for state in states]})
        while (number := _receive(connection)["trial"]) is not None:
            run_round(states, number)
            _send(connection, {"done": number})
        return []

    jobs = [
        sweep_job(replace(each, sweep_folder=folder, folder=folder / str(index)), name, index)
        for index, (each, name) in enumerate(zip(requests, job_names(requests), strict=True))
    ]
    tracking = SweepTracker(requests[0].tracker, folder)
    run_sweep(jobs, requests[0].sweep, tracking, Progress(), schedule=schedule)
    _send(connection, {"ended": len(jobs)})


def _find_function(name: str, *modules: str) -> Any:
    """The function of that name in the first of the modules that this version has."""
    found = next(module for module in modules if find_spec(module))
    return getattr(import_module(found), name)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _receive(connection: Connection) -> dict[str, Any]:
    return json.loads(connection.recv_bytes())


def _start() -> None:
    """Serve the command that has started this process, with this version's `serve_version`."""
    # Without -P, Python has put the folder of this file first on sys.path. Modules there would hide
    # modules of the same name.
    if not sys.flags.safe_path:
        del sys.path[0]
    serve = serve_version
    # The version's own `serve_version` fits the version's own sweep. An older fastloop has no such
    # module. For it, the function of this file is used.
    with suppress(ImportError):
        from fastloop.cli.serve_version import serve_version as serve
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    # The command has closed the connection: nobody waits for an answer.
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        _send(connection, {"error": f"{type(error).__name__}: {lines[0]}"})


if __name__ == "__main__":
    _start()
