"""python -m fastloop.run: compose every combination, build every job, measure, log, compare."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastloop.config import Composed, compose_all, flat, remove_unused, resource_folder

if TYPE_CHECKING:
    from fastloop.campaign import Entry
    from fastloop.result import Result

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
    "#bcbd22",
    "#17becf", "#aec7e8", "#ffbb78", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94", "#f7b6d2",
    "#dbdb8d",
)  # fmt: skip
"""matplotlib's tab20 in another order: neighbours in the list of loaders differ most."""


def main() -> None:
    """The command line; exits with 1 where a job failed, or where the only one is unsupported."""
    composed = compose_all()
    if not composed:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(_measure(composed))
    except KeyboardInterrupt:
        print(f"interrupted; finished trials are in {composed[0].sweep_folder}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _measure(composed: Sequence[Composed]) -> int:
    from fastloop.campaign import num_steps, run_campaign
    from fastloop.table import format_tables

    entries = [_entry(one, name) for one, name in zip(composed, _names(composed), strict=True)]
    launcher, tracker = composed[0].launcher, composed[0].tracker
    if refusal := _refusal(composed):
        for one in composed:
            remove_unused(one.folder)
        print(refusal, file=sys.stderr)
        return 1
    with _progress(num_steps(entries)) as advance:
        results = run_campaign(entries, launcher, tracker, advance)
    print(format_tables(results))
    print(f"\nfiles:  {composed[0].sweep_folder}")
    print(tracker.where(entries[0].result.tags["sweep"]))
    return _exit_status(results)


def _refusal(composed: Sequence[Composed]) -> str:
    """Why nothing of this is measured; empty where there is no reason."""
    from fastloop.job import check_support
    from fastloop.types import Unsupported

    first = composed[0]
    if any((one.launcher, one.tracker) != (first.launcher, first.tracker) for one in composed):
        return "launcher, isolation and tracker can't be swept: a sweep has one of each"
    try:
        if len(composed) == 1:
            check_support(first.job)
    except Unsupported as why:
        return f"unsupported: {why}"
    return ""


def _exit_status(results: Sequence[Result]) -> int:
    reasons = [result.status_reason for result in results if result.status != "FINISHED"]
    unsupported = [reason for reason in reasons if reason.startswith("unsupported")]
    return int(len(unsupported) < len(reasons) or (len(results) == 1 and bool(reasons)))


def _entry(one: Composed, name: str) -> Entry:
    from omegaconf import OmegaConf

    from fastloop.campaign import Entry
    from fastloop.result import Result

    return Entry(
        job=one.job,
        folder=one.folder,
        config_yaml=OmegaConf.to_yaml(one.config),
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
    choices = {group.rpartition("/")[2]: choice for group, choice in one.choices.items()}
    return flat(one.config) | choices | {"world_size": 1}


def _tags(one: Composed) -> dict[str, str]:
    from fastloop.environment import describe, resolve_device
    from fastloop.files import fingerprint
    from fastloop.types import Unsupported

    try:
        device = str(resolve_device(one.job.device))
    except Unsupported:
        device = one.job.device
    machine = describe()
    loaders = sorted(path.stem for path in (resource_folder("conf") / "loader").glob("*.yaml"))
    place = loaders.index(one.choices["loader"]) if one.choices["loader"] in loaders else -1
    return {
        "sweep": "/".join(one.sweep_folder.parts[-2:]),
        "config_hash": fingerprint(sorted(flat(one.config).items(), key=str)),
        "git_commit": machine["git_commit"],
        "host": machine["host"],
        "device": device,
        "mlflow.runColor": COLOURS[place % len(COLOURS)],
    }


def _names(composed: Sequence[Composed]) -> list[str]:
    """`<loader> <dataset>`, and whatever else varies in the sweep."""
    everywhere = set.intersection(*(set(one.overrides) for one in composed))
    names = []
    for one in composed:
        own = [
            o
            for o in one.overrides
            if o not in everywhere and not o.startswith(("loader=", "dataset="))
        ]
        names.append(" ".join([one.choices["loader"], one.choices["dataset"], *own]))
    return names


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


if __name__ == "__main__":
    main()
