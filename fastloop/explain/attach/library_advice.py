"""Advise on a change of a DataLoader that a library makes, by the arguments of that library.

A script that uses such a library has no call of DataLoader that a patch could change.
"""

from __future__ import annotations

from pathlib import Path

from fastloop.explain.change import Change

LIBRARIES = {
    "transformers": {
        "num_workers": "TrainingArguments(dataloader_num_workers={})",
        "persistent_workers": "TrainingArguments(dataloader_persistent_workers={})",
        "prefetch_factor": "TrainingArguments(dataloader_prefetch_factor={})",
        "pin_memory": "TrainingArguments(dataloader_pin_memory={})",
    },
    "timm": {
        "num_workers": "create_loader(num_workers={}), --workers of train.py",
        "persistent_workers": "create_loader(persistent_workers={})",
        "pin_memory": "create_loader(pin_memory={}), --pin-mem of train.py",
    },
    "ultralytics": {"num_workers": "workers={}"},
}
"""Package of a library that makes DataLoaders -> argument of DataLoader -> the text that sets this
argument in the library."""


def advise_on_library(path: Path, line: str, change: Change) -> str:
    """The advice for a DataLoader that a library makes: the arguments of the library to set.

    If no such argument is known, or if the change is to FastLoader, the advice names only the
    change. path, line: the place of the call in the library.
    """
    arguments = next((LIBRARIES[name] for name in LIBRARIES if name in path.parts), {})
    settings = {name: value for name, value in change.settings.items() if name in arguments}
    known = [arguments[name].format(repr(value)) for name, value in settings.items()]
    if change.torch_threads is not None:
        known.append(f"torch.set_num_threads({change.torch_threads})")
    made = f"The DataLoader is made inside of a library, at {path.name}:{line}"
    if not known or change.is_fastloader:
        return f"{made}: it needs {change.name}"
    # The gain belongs to all settings together, so the advice also names the other settings.
    others = [
        f"{name}={value!r}" for name, value in change.settings.items() if name not in settings
    ]
    needs = f"; it also needs {', '.join(others)}" if others else ""
    return f"{made}: set {', '.join(known)}{needs}"
