"""A sweep from its composed combinations to the table, the report and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.catalogue import resource_folder
from fastloop.colours import colour_of
from fastloop.config import SWEEP_SETTINGS, Composed, flat, of_the_job
from fastloop.endings import ending_in_order, leave_in_order
from fastloop.files import remove_unused
from fastloop.names import names_of
from fastloop.refusal import Refused, of_a_failure

if TYPE_CHECKING:
    from fastloop.campaign import Entry, Sweep
    from fastloop.crew import Member
    from fastloop.result import Result
    from fastloop.tracking import Tracking


def measure(composed: Sequence[Composed]) -> int:
    """The exit status of a sweep of these, measured alone on this machine unless that is waived."""
    from fastloop.alone import Occupied, alone

    if composed[0].is_done:
        return _told(composed)
    sweep, member = composed[0].sweep, composed[0].launcher.member
    refusal = _refusal(composed)
    if member.number and not refusal:
        remove_unused(composed[0].sweep_folder)
        return followed(member)
    refusal = refusal or _led(member)
    try:
        with nullcontext() if refusal or _may_be_beside(sweep) else alone(sweep.wait):
            if not refusal:
                return _run(*_entries(composed))
    except (Occupied, Refused) as why:
        refusal = str(why)
    remove_unused(composed[0].sweep_folder)
    print(refusal, file=sys.stderr)
    return 1


def followed(member: Member) -> int:
    """The exit status of doing what the first of all processes says, silently, to the end."""
    from fastloop.crew import follow

    leave_in_order()
    try:
        if follow(member):
            return 0
        assert member.address is not None
        said = f"lost the first of {member.size} ({member.address.host}:{member.address.port})"
    except ConnectionError as why:
        said = str(why)
    print(f"process {member.number}: {said}", file=sys.stderr)
    return 1


def _led(member: Member) -> str:
    """Why there is nothing to lead the others by; empty where there is, or where there are none."""
    from fastloop.lead import lead

    try:
        if member.address is not None:
            lead(member.address, member.hosts, member.size)
    except ConnectionError as why:
        return str(why)
    return ""


def _run(entries: Sequence[Entry], one: Composed) -> int:
    from fastloop.campaign import num_steps, run_campaign
    from fastloop.tracking import Tracking

    tracking = Tracking(one.tracker, one.sweep_folder)
    with _progress(num_steps(entries, one.sweep)) as advance:
        results = run_campaign(entries, one.sweep, tracking, advance)
    return _printed(results, entries, one, tracking)


def _printed(
    results: Sequence[Result], entries: Sequence[Entry], one: Composed, tracking: Tracking
) -> int:
    """The exit status, after the table and where more is found."""
    from fastloop.reporting.table import format_tables

    if len(results) == 1 and not results[0].trials:
        details = entries[0].folder / "traceback.txt"
        where = str(details) if details.exists() else ""
        print(of_a_failure(results[0].status_reason, where), file=sys.stderr)
        return 1
    print(format_tables(results, one.sweep.baseline or ""))
    print(f"\nfiles:  {one.sweep_folder}")
    if one.sweep.report:
        print(f"report: {_reported(results, one, tracking)}")
    print(tracking.where(entries[0].result.tags["sweep"]))
    return _exit_status(results)


def measure_apart(composed: Sequence[Composed]) -> int:
    """0 when the result of this one is written, whatever it is: the others of its sweep are
    measured by other processes, beside it or on other machines."""
    from fastloop.alone import alone
    from fastloop.campaign import run_campaign
    from fastloop.result import RESULT_FILE
    from fastloop.resume import continued
    from fastloop.tracking import Tracking

    (one,) = composed
    entries = [_entry(one, one.name)]
    if (one.folder / RESULT_FILE).exists():  # a cluster has ended this process and begun it again
        entries = continued(entries, one.sweep_folder)
    tracking = Tracking(one.tracker, one.sweep_folder)
    with ending_in_order(), nullcontext() if _may_be_beside(one.sweep) else alone(one.sweep.wait):
        (result,) = run_campaign(entries, one.sweep, tracking, lambda _: None)
    print(f"{result.name}: {result.status} {result.status_reason}".rstrip(), file=sys.stderr)
    return 0


def _told(composed: Sequence[Composed]) -> int:
    """The exit status of jobs that other processes have measured, from the results that they have
    written."""
    from fastloop.result import RESULT_FILE, load
    from fastloop.tracking import Tracking

    one = composed[0]
    entries = [_entry(each, each.name) for each in composed]
    results = []
    for entry in entries:
        found = entry.result
        if (entry.folder / RESULT_FILE).exists():
            found = load(entry.folder)
        if found.status == "RUNNING":
            found = replace(
                found, status_reason="no result yet: its process has ended, or not begun"
            )
        results.append(found)
    return _printed(results, entries, one, Tracking(one.tracker, one.sweep_folder))


def _may_be_beside(sweep: Sweep) -> bool:
    return sweep.allow_concurrent and not sweep.wait


def _reported(results: Sequence[Result], one: Composed, tracking: Tracking) -> Path:
    """The page that was written, and handed to the tracker with its pictures."""
    from fastloop.report import write_report

    baseline = one.sweep.baseline or ""
    finished = [result for result in results if result.status == "FINISHED"]
    if baseline not in [name for result in finished for name in (result.name, result.loader)]:
        baseline = ""  # it has failed: its row says why, ratios are told against the first
    paths = write_report(results, one.sweep_folder / "report", baseline)
    for result in results:
        tracking.attach(result, [path for path in paths if path.suffix in (".html", ".png")])
    return paths[0]


def _entries(composed: Sequence[Composed]) -> tuple[list[Entry], Composed]:
    """The sweep's entries, and one of its combinations with the sweep's folder."""
    from fastloop.resume import continued, earlier_sweep

    one = composed[0]
    folder = one.sweep_folder
    if one.sweep.resume:
        folder = earlier_sweep(one.sweep.resume)
        remove_unused(one.sweep_folder)
    entries = [
        _entry(replace(each, sweep_folder=folder), name)
        for each, name in zip(composed, names_of(composed), strict=True)
    ]
    if one.sweep.resume:
        entries = continued(entries, folder)
    return entries, replace(one, sweep_folder=folder)


def _refusal(composed: Sequence[Composed]) -> str:
    """Why nothing of this is measured; empty where there is no reason."""
    from fastloop.crew import of_torchrun
    from fastloop.job import check_support
    from fastloop.types import Unsupported

    first = composed[0]
    ends = [(one.tracker, one.sweep) for one in composed]
    if any(one != ends[0] for one in ends):
        names = ", ".join(("tracker", *SWEEP_SETTINGS))
        return f"a sweep has one of each, they can't be swept: {names}"
    if len({one.launcher.member for one in composed}) > 1 and of_torchrun() is None:
        names = "launcher.nnodes, launcher.node_rank, launcher.rdzv_endpoint"
        return f"a sweep is run by the same nodes, they can't be swept: {names}"
    names = [*names_of(composed), *(one.choices["loader"] for one in composed)]
    if (baseline := first.sweep.baseline) and baseline not in names:
        return f"baseline={baseline}: no such job or loader; allowed are {', '.join(names)}"
    try:
        if len(composed) == 1:
            first.launcher.check(check_support(first.job, first.launcher.world_size))
    except Unsupported as why:
        return f"unsupported: {why}"
    return ""


def _exit_status(results: Sequence[Result]) -> int:
    reasons = [result.status_reason for result in results if result.status != "FINISHED"]
    unsupported = [reason for reason in reasons if reason.startswith("unsupported")]
    return int(len(unsupported) < len(reasons) or (len(results) == 1 and bool(reasons)))


def _entry(one: Composed, name: str) -> Entry:
    from fastloop.campaign import Entry
    from fastloop.result import Result

    return Entry(
        job=one.job,
        launcher=one.launcher,
        folder=one.folder,
        config_yaml=one.config_yaml,
        result=Result(
            name=name,
            loader=one.choices["loader"],
            dataset=one.job.dataset.label,
            params=_params(one),
            tags=_tags(one),
        ),
    )


def _params(one: Composed) -> dict[str, Any]:
    """Every leaf of the resolved config, dotted, and the group choices by the name of their
    group."""
    from fastloop.own_loader import ITS_OWN, OwnLoader

    choices = {group.rpartition("/")[2]: choice for group, choice in one.choices.items()}
    loader = one.job.loader
    is_told = not isinstance(loader, OwnLoader) or "batch_size" in loader.takes
    told = {} if is_told else {"batch_size": ITS_OWN}
    return flat(one.config) | choices | told | {"world_size": one.launcher.world_size}


def _tags(one: Composed) -> dict[str, str]:
    from fastloop.environment import describe, resolve_device
    from fastloop.files import fingerprint
    from fastloop.types import Unsupported

    try:
        device = str(resolve_device(one.job.device))
    except Unsupported:
        device = one.job.device
    machine = describe()
    loaders = (path.stem for path in (resource_folder("conf") / "loader").glob("*.yaml"))
    return {
        "sweep": "/".join(one.sweep_folder.parts[-2:]),
        "config_hash": fingerprint(sorted(_identity(one).items())),
        "git_commit": machine["git_commit"],
        "host": machine["host"],
        "device": device,
        "mlflow.runColor": colour_of(one.choices["loader"], loaders),
        **({"concurrent": "true"} if one.sweep.allow_concurrent else {}),
        **({} if one.job.same_data else {"unverified": "true"}),
    }


NOT_ITS_OWN = ("trials", "trial_timeout_s", ".root")


def _identity(one: Composed) -> dict[str, str]:
    """What makes a trial this one, by its dotted name; how many there are, how long each may
    take, and where its files lie, does not."""
    values = flat(of_the_job(one.config))
    if (size := one.launcher.world_size) > 1:
        values |= {"world_size": size, "backend": one.config["launcher"]["backend"]}
    return {name: repr(value) for name, value in values.items() if not name.endswith(NOT_ITS_OWN)}


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """What to call as each step begins: a bar with an ETA on a terminal, silence in a pipe."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread of its own beside the measurements
    with tqdm(total=steps, disable=None, ncols=79, leave=False) as bar:
        begun: list[str] = []

        def advance(step: str) -> None:
            bar.update(min(1, len(begun)))
            bar.set_description(step[:40])
            begun.append(step)

        yield advance
