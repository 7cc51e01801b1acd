"""The scripts, the verdicts that are right for each, and the changes that are tried."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from fastloop.explain.attach.edit_call import edit_call
from fastloop.explain.change import Change

FOLDER = Path(__file__).parent / "scripts"
LOADER_CALL = re.compile(r"\bDataLoader\(")
SAMPLES = ("decode", "transform")
"""Right verdicts if making a sample is the cause: a transform inside of a Dataset counts as
decoding."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script as users write it."""

    name: str
    causes: tuple[str, ...]
    """The verdicts that are right; empty if the script has no DataLoader."""
    command: tuple[str, ...] = ()
    """The words before the script's name in the command; empty if Python runs it."""
    made_in: str = ""
    """The file in which the first DataLoader is changed; empty for the script itself."""
    workers: tuple[int, ...] = (0, 1, 2, 4)
    """Numbers of workers that are tried."""
    library: str = ""
    """The package that the script needs."""
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a change -> text of the script, and the text that replaces it. Given if a library
    makes the DataLoader."""

    @property
    def file(self) -> str:
        """Path of the script in its folder."""
        return (
            f"{self.name}.py" if (FOLDER / f"{self.name}.py").exists() else f"{self.name}/train.py"
        )

    @property
    def missing(self) -> str:
        """The package that is not installed; empty if none is missing."""
        return self.library if self.library and find_spec(self.library) is None else ""


TRAINER_LINE = "report_to=[],"
SCRIPTS = (
    Script(name="mnist", causes=("step",)),
    Script(name="imagenet", causes=SAMPLES),
    Script(name="timm_style", causes=SAMPLES, made_in="timm_style/loader.py"),
    Script(name="nano_gpt", causes=()),
    Script(name="lightning_module", causes=SAMPLES, library="lightning"),
    Script(
        name="trainer",
        causes=("step",),
        library="transformers",
        edits={
            f"num_workers={count}": (
                TRAINER_LINE,
                f"{TRAINER_LINE} dataloader_num_workers={count},",
            )
            for count in (1, 2)
        },
    ),
    Script(name="word_model", causes=("step",)),
    Script(name="vae", causes=SAMPLES),
    Script(name="detection", causes=SAMPLES),
    # A batch has 64 samples of a few numbers each: making and collating them take about equally
    # long, so both verdicts are right.
    Script(name="tabular", causes=("decode", "collate")),
    Script(
        name="ddp",
        causes=SAMPLES,
        command=("torchrun", "--standalone", "--nproc_per_node=2"),
        workers=(0, 1, 2),
    ),
    Script(name="streaming", causes=SAMPLES, workers=(0, 1, 2, 4, 8)),
)


def changed_sources(script: Script) -> dict[str, tuple[str, str]]:
    """Name of each change -> the file, and its new text."""
    path = script.made_in or script.file
    source = (FOLDER / path).read_text()
    if script.edits:
        return {name: (path, source.replace(old, new)) for name, (old, new) in script.edits.items()}
    found = LOADER_CALL.search(source)
    if found is None:
        return {}
    line = source.count("\n", 0, found.start()) + 1
    changes = [Change(is_fastloader=True), Change(torch_threads=1)]
    for count in script.workers:
        changes.append(Change(settings={"num_workers": count}))
        if count:
            kept = {"num_workers": count, "persistent_workers": True}
            changes.append(Change(settings=kept))
    return {each.name: (path, edit_call(source, line, each)) for each in changes}


def command_of(script: Script) -> list[str]:
    """The command that runs the script without fastloop."""
    if not script.command:
        return [sys.executable, script.file]
    # The packages that the script needs are installed for this Python.
    return [
        str(Path(sys.executable).with_name(script.command[0])),
        *script.command[1:],
        script.file,
    ]
