"""fastloop clean: show the contents of the outputs folder, and remove parts of it.

    fastloop clean [stores] [data] [results] [reports] [attach] [check] [suite] [mlflow]
                   [environments] [older_than=30d] [yes=true]

Without yes=true nothing is removed. With it, only files in the outputs folder that fastloop has
made are removed: no images of yours in data/, and no runs of other programs.

stores   datasets that were written in a loader's format; they are written again if needed
data     datasets that were downloaded or generated; they are fetched again if needed
results  folders of sweeps, with their reports
reports  reports alone; `fastloop report` writes them again
attach   findings of `fastloop attach`
check    results of `fastloop check against=`
suite    sweeps of `fastloop suite`, a folder a round; the files that it wrote to results/ stay
mlflow   MLflow's database and artifacts; `fastloop log` logs results to a new one
environments  libraries of options in their own environments; `fastloop env` creates them again

older_than=  only files that were last changed longer ago: 12h, 30d, 8w
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastloop.cli.arguments import parse_settings
from fastloop.core.atomic_files import hold_lock, remove
from fastloop.core.outputs_folder import outputs_folder, sweep_folders
from fastloop.core.types import MachineBusy, UsageError

DEFAULTS = {"older_than": "", "yes": "false"}
"""Name of a setting of the command -> its default."""
ENVIRONMENTS = "environments"
"""The word for environments on the command line, and the name of their folder."""
HOUR_S = 3600
UNITS = {"h": HOUR_S, "d": 24 * HOUR_S, "w": 7 * 24 * HOUR_S}
"""Unit of an age on the command line -> seconds."""
MIB = 2**20
MADE_DATA = re.compile(
    r"\.?((mydataset|texts)-.+\.npz|photos-\d+-\d+x\d+|tokens-\d+\.bin|FashionMNIST)(\.lock)?"
)
"""Names in data/ of generated or downloaded data, and of their locks. The default folders of the
datasets image_folder and csv_images are in data/, too, but their files are the user's own."""
MADE_TIME = re.compile(r"\d\d-\d\d-\d\d-\d{6}")
"""Name of a sweep's folder: the time with microseconds. Other programs that use Hydra may also
write to outputs/, but the names of their folders have no microseconds."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file or folder that can be removed."""

    path: Path
    mib: float
    """Size in MiB; that of a folder includes its files."""
    age_s: float
    """Seconds since the last change of the file, or of anything in the folder."""


def main() -> None:
    """Print the content of the outputs folder and, with yes=true, remove the named kinds.

    Exits with 1 on failure.
    """
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return
    try:
        kinds = [each for each in arguments if "=" not in each]
        given = parse_settings([each for each in arguments if "=" in each], DEFAULTS)
        _clean(_check_kinds(kinds), _parse_age(given["older_than"]), given["yes"])
    except UsageError as error:
        sys.exit(str(error))
    except MachineBusy as error:
        sys.exit(f"clean: {error}; nothing was removed")


def _check_kinds(kinds: Sequence[str]) -> list[str]:
    """Return the kinds, each once; raises UsageError for an unknown one."""
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"clean {kind}: allowed: {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds))


def _parse_age(text: str) -> float:
    """Parse an age such as 30d; returns seconds, 0 for empty text.

    Raises UsageError for text that is not an age.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text)
    if text and not match:
        raise UsageError(f"older_than={text}: allowed: a time such as 12h, 30d or 8w")
    return float(match[1]) * UNITS[match[2]] if match else 0.0


def _clean(kinds: Sequence[str], age_s: float, yes: str) -> None:
    """Print the content of the outputs folder and, with yes=true, remove the named kinds.

    kinds: keys of KINDS, of which alone the content is printed; empty: all. age_s: least age of an
    item in seconds. Raises UsageError for another text than true or false in `yes`, for yes=true
    without kinds, and as `_keep_environments` does. Raises MachineBusy if another fastloop measures
    or prepares.
    """
    if yes not in ("true", "false"):
        raise UsageError(f"yes={yes}: allowed: true, false")
    if yes == "true" and not kinds:
        known = ", ".join(KINDS)
        raise UsageError(f"clean yes=true: allowed: together with what to remove: {known}")
    found = {
        kind: [item for item in _items(kind) if item.age_s >= age_s] for kind in kinds or KINDS
    }
    print(f"{outputs_folder()}:")
    for kind, items in found.items():
        print(_line(kind, items))
    if yes == "true":
        _remove([item for items in found.values() for item in items])
    elif any(found.values()):
        shown = " ".join(kinds) or next(kind for kind, items in found.items() if items)
        print(f"\nNothing was removed: fastloop clean {shown} yes=true removes {shown}.")


def _remove(items: Sequence[Item]) -> None:
    """Remove the items, under the lock that keeps other commands from measuring or preparing."""
    from fastloop.sweep.machine_lock import lock_machine

    removed_mib = 0.0
    with lock_machine(wait=False), _keep_environments(items):
        for item in items:
            # The item may be a report that was removed with its sweep. is_symlink() is needed
            # because exists() is False for a broken link.
            if item.path.exists() or item.path.is_symlink():
                # A report of a listed sweep may be gone, which the sweep's size still includes.
                removed_mib += describe_item(item.path, 0.0).mib
                remove(item.path)
        for folder in {item.path.parent for item in items} - {outputs_folder()}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    print(f"\nremoved: {removed_mib:,.1f} MiB")


@contextmanager
def _keep_environments(items: Sequence[Item]) -> Iterator[None]:
    """Keep other commands from creating environments inside the context, if an item is one.

    Raises UsageError if another command creates an environment now, because the unfinished folder
    is one of the items.
    """
    folder = outputs_folder() / ENVIRONMENTS
    if not any(item.path.parent == folder for item in items):
        yield
        return
    with hold_lock(folder, _refuse_environments):
        yield


def _refuse_environments() -> None:
    """Raise UsageError, because another command creates an environment."""
    raise UsageError(
        f"clean {ENVIRONMENTS}: another fastloop creates an environment; nothing was removed; "
        "try again when it has ended"
    )


def _line(kind: str, items: Sequence[Item]) -> str:
    """A line with the number, size and ages of the items of a kind."""
    if not items:
        return f"  {kind:12} -"
    size = f"{sum(item.mib for item in items):10,.1f} MiB"
    ages_s = [item.age_s for item in items]
    oldest, newest = describe_age(max(ages_s)), describe_age(min(ages_s))
    ages = f"{newest} to {oldest} old" if newest != oldest else f"{oldest} old"
    return f"  {kind:12} {len(items):5} {size}, {ages}"


def describe_age(seconds: float) -> str:
    """The age as text, in hours or, from one day on, in days."""
    if seconds < HOUR_S:
        return "less than 1 h"
    return f"{seconds / UNITS['d']:.0f} d" if seconds >= UNITS["d"] else f"{seconds / HOUR_S:.0f} h"


def _items(kind: str) -> list[Item]:
    """All items of a kind that lie in the outputs folder."""
    from fastloop.core.spans import wall_ms

    # The content of a linked folder lies elsewhere, and is not removed.
    outputs = outputs_folder()
    now_s = wall_ms() / 1000
    paths = KINDS[kind](outputs)
    inside = [path for path in paths if path.parent.resolve().is_relative_to(outputs.resolve())]
    return [describe_item(path, now_s) for path in inside]


def describe_item(path: Path, now_s: float) -> Item:
    """Describe a file or folder by its size and its age.

    For a link, these are the size and the age of the link itself. now_s: the present time in
    seconds since 1970.
    """
    # os.walk continues if a folder is removed meanwhile; rglob would raise an error.
    below = [] if path.is_symlink() else os.walk(path)
    files = [Path(top, name) for top, folders, names in below for name in (*folders, *names)]
    states = [state for each in (path, *files) if (state := _state_of(each))]
    sizes = [each.st_size for each in states if not stat.S_ISDIR(each.st_mode)]
    newest = max((each.st_mtime for each in states), default=now_s)
    # The clock may have been set back since the last change.
    return Item(path=path, mib=sum(sizes) / MIB, age_s=max(0.0, now_s - newest))


def _state_of(path: Path) -> os.stat_result | None:
    """The state of a file; None if a command that still runs has removed it meanwhile."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _children(name: str) -> Callable[[Path], list[Path]]:
    """A function from the outputs folder to the content of its folder of that name."""

    def children(outputs: Path) -> list[Path]:
        folder = outputs / name
        # A link leads elsewhere, and is not followed.
        is_own = folder.is_dir() and not folder.is_symlink()
        return sorted(folder.iterdir()) if is_own else []

    return children


def _data(outputs: Path) -> list[Path]:
    """The downloaded and generated data."""
    return [path for path in _children("data")(outputs) if MADE_DATA.fullmatch(path.name)]


def _results(_: Path) -> list[Path]:
    """The folders of fastloop's sweeps, without links."""
    return [folder for folder in sweep_folders() if not folder.is_symlink() and _is_own(folder)]


def _is_own(folder: Path) -> bool:
    """True for a folder of one of fastloop's sweeps: it has the default name, or a result in it."""
    return bool(MADE_TIME.fullmatch(folder.name)) or any(folder.glob("*/result.json"))


def _reports(outputs: Path) -> list[Path]:
    """The folders of reports in the folders of sweeps."""
    return [folder / "report" for folder in _results(outputs) if (folder / "report").is_dir()]


def _mlflow(outputs: Path) -> list[Path]:
    """MLflow's database and the folder of its artifacts."""
    return [path for path in (outputs / "mlflow.db", outputs / "mlartifacts") if path.exists()]


KINDS: Mapping[str, Callable[[Path], list[Path]]] = {
    "stores": _children("stores"),
    "data": _data,
    "results": _results,
    "reports": _reports,
    "attach": _children("attach"),
    "check": _children("check"),
    "suite": _children("suite"),
    "mlflow": _mlflow,
    ENVIRONMENTS: _children(ENVIRONMENTS),
}
"""A word on the command line -> a function that finds the items of that kind."""
