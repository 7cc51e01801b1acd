"""Does `fastloop attach --try` find the change that wins? README.md has the method and results.

python -m experiments.attach.run [--minutes=3] [--rounds=3] [names of scripts]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.attach.data import write_data
from experiments.attach.scripts import FOLDER, SCRIPTS, Script, changed_sources, command_of
from experiments.attach.table import format_table
from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.spans import now_ns, seconds_between

AS_IS, PATCHED = "as it is", "patched"
TRAINED = re.compile(r"^trained for ([\d.]+) s$", re.MULTILINE)
FILES = re.compile(r"^files:  (.+)$", re.MULTILINE)


@dataclass(kw_only=True)
class Study:
    """Findings about a script, and the times of its changes."""

    script: str
    causes: tuple[str, ...]
    said: str = ""
    """The text that attach printed."""
    answer_s: float = 0.0
    """Seconds from the command to its end."""
    verdict: str = ""
    """Verdict on the loop that waits longest; empty if none was given."""
    predictions: dict[str, float] = field(default_factory=dict)
    """Predicted gain of each change, by name, for the same loop."""
    tried: dict[str, Any] = field(default_factory=dict)
    """Content of attach_try.json; empty if nothing was tried."""
    patch_error: str = ""
    """The reason why the patch does not apply or run; empty if it does, or if there is no patch."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of training in interleaved rounds, by the name of the change."""


def main() -> None:
    """Study the scripts that have not been studied yet, and print the table of all scripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("names", nargs="*", choices=[[], *(each.name for each in SCRIPTS)])
    arguments = parser.parse_args()
    folder = outputs_folder() / "attach_study"
    if not (folder / "data").exists():
        write_data(folder / "data")
    chosen = [each for each in SCRIPTS if not arguments.names or each.name in arguments.names]
    for script in chosen:
        path = folder / f"{script.name}.json"
        if script.missing:
            print(f"{script.name}: {script.missing} is not installed", file=sys.stderr)
        elif not path.exists():
            study = study_script(script, folder, arguments.minutes, arguments.rounds)
            path.write_text(json.dumps(asdict(study), indent=1) + "\n")
    paths = [folder / f"{each.name}.json" for each in SCRIPTS]
    print(format_table([json.loads(path.read_text()) for path in paths if path.exists()]))


def study_script(script: Script, folder: Path, minutes: float, rounds: int) -> Study:
    """Let attach try changes of the script, apply its patch, and time every change."""
    study = Study(script=script.name, causes=script.causes)
    original = _copy_scripts(folder, script.name, AS_IS)
    _ask_attach(script, original, minutes, study)
    folders = {AS_IS: original}
    if study.tried.get("patch"):
        folders[PATCHED] = _copy_scripts(folder, script.name, PATCHED)
        study.patch_error = _apply_patch(folders[PATCHED], study.tried["patch"])
    for name, (path, text) in changed_sources(script).items():
        folders[name] = _copy_scripts(folder, script.name, name)
        (folders[name] / path).write_text(text)
    drawn = random.Random(0)
    for number in range(rounds):
        order = [*folders]
        drawn.shuffle(order)
        for name in order:
            seconds = _train(script, folders[name])
            print(f"{script.name}, round {number + 1}: {name}: {seconds}", file=sys.stderr)
            if seconds is None and name == PATCHED:
                study.patch_error = study.patch_error or "the patched script does not run"
            if seconds is not None:
                study.seconds.setdefault(name, []).append(seconds)
    shutil.rmtree(folder / script.name)
    return study


def _copy_scripts(folder: Path, script: str, change: str) -> Path:
    """A folder with all scripts and their data, for one change."""
    place = folder / script / re.sub(r"\W+", "-", change)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(FOLDER, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "data").symlink_to(folder / "data")
    return place


def _ask_attach(script: Script, place: Path, minutes: float, study: Study) -> None:
    outputs = place / "outputs"
    command = [sys.executable, "-m", "fastloop", "attach", "--try", "--yes", f"--minutes={minutes}"]
    start_ns = now_ns()
    process = subprocess.run(
        [*command, *command_of(script)[0 if script.command else 1 :]],
        cwd=place,
        env=os.environ | {"FASTLOOP_OUTPUTS": str(outputs)},
        capture_output=True,
        text=True,
        check=False,
    )
    study.answer_s = seconds_between(start_ns, now_ns())
    study.said = process.stderr
    found = FILES.search(process.stderr)
    if not found:
        return
    files = Path(found[1])
    loops = json.loads((files / "attach.json").read_text())["loops"]
    tried = files / "attach_try.json"
    study.tried = json.loads(tried.read_text()) if tried.exists() else {}
    place_of_loop = study.tried.get("place")
    loop = next((each for each in loops if each["facts"]["place"] == place_of_loop), loops[0])
    study.verdict = loop["verdict"]["word"]
    study.predictions = {each["change"]: each["gain"] for each in loop["what_ifs"]}


def _apply_patch(place: Path, patch: str) -> str:
    """Apply the patch in the folder. Returns the reason why it can't be applied, empty if it
    can."""
    # The folder gets a repository of its own, because git applies no patch to files that an outer
    # repository ignores.
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=place, input=patch, capture_output=True, text=True, check=False
    )
    return applied.stderr.strip()


def _train(script: Script, place: Path) -> float | None:
    """Seconds of training, as the script prints them; None if it fails."""
    process = subprocess.run(
        command_of(script), cwd=place, capture_output=True, text=True, check=False
    )
    trained = TRAINED.search(process.stdout)
    if process.returncode or not trained:
        print(process.stderr[-500:], file=sys.stderr)
        return None
    return float(trained[1])


if __name__ == "__main__":
    main()
