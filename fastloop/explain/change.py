"""A change of settings that may make a loop faster: of a job, of a loop, or of a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FASTLOADER = "fastloop.FastLoader"
FORK = "fork"
"""The start method that makes a worker a copy of the process, without a new interpreter."""
LEAST_GAIN = 0.02
"""Least gain, as a share of a job's epoch or of a loop's time. A change that saves less is not
worth trying, following or listing."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of settings that may make a loop faster.

    `overrides` change a job; `settings`, `is_fastloader` and `torch_threads` change the loop of a
    script. A change without any of these fields leaves everything as it is, or `text` describes it
    and only the user can make it.

    Raises ValueError for overrides beside a change of a script, and for values that can't be
    carried out.

    >>> Change(overrides=("num_workers=2",)).apply(["num_workers=0", "epochs=1"])
    ('epochs=1', 'num_workers=2')
    >>> Change(settings={"num_workers": 2, "persistent_workers": True}).name
    'num_workers=2, persistent_workers=True'
    """

    overrides: tuple[str, ...] = ()
    """Overrides that replace those of the same settings on a job's command line."""
    is_asked: bool = False
    """True if the user named the overrides; they are then tried whatever gain is predicted."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of a script's DataLoader, by name."""
    is_fastloader: bool = False
    """True: FastLoader takes the DataLoader's place, with the same arguments."""
    torch_threads: int | None = None
    """Number of torch's threads in the script's process; None: unchanged."""
    text: str = ""
    """A name that is shorter than the settings, or says more; empty: the settings are the name."""

    def __post_init__(self) -> None:
        overrides: Any = self.overrides
        # A string instead of a tuple would be read as overrides of one character each.
        if not isinstance(overrides, tuple) or not all(overrides):
            raise ValueError(f"overrides={overrides!r}: allowed: such as ('num_workers=2',)")
        if self.is_asked and not overrides:
            raise ValueError("is_asked=True: allowed: a change with overrides")
        if overrides and self._is_of_script:
            allowed = "allowed: overrides of a job, or settings of a script's DataLoader"
            raise ValueError(f"overrides={overrides!r} with settings={self.settings!r}: {allowed}")
        for name in self.settings:
            if not name.isidentifier():
                raise ValueError(f"settings: {name!r}: allowed: names of DataLoader's arguments")
        if self.torch_threads is not None and self.torch_threads < 1:
            raise ValueError(f"torch_threads={self.torch_threads}: allowed: 1 or more")

    @property
    def _is_of_script(self) -> bool:
        return bool(self.settings) or self.is_fastloader or self.torch_threads is not None

    @property
    def forks_workers(self) -> bool:
        """True if the workers of a script's DataLoader are forked after the change."""
        return self.settings.get("multiprocessing_context") == FORK

    @property
    def name(self) -> str:
        """The change as text; empty if nothing is changed."""
        if self.text:
            return self.text
        if self.overrides:
            return " ".join(override.lstrip("+") for override in self.overrides)
        words = [FASTLOADER] if self.is_fastloader else []
        words += [f"{name}={value!r}" for name, value in self.settings.items()]
        if self.torch_threads is not None:
            words.append(f"torch.set_num_threads({self.torch_threads})")
        return ", ".join(words)

    def apply(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """The overrides of a job's command line after this change.

        overrides: those before the change.
        """
        names = [override.lstrip("+").partition("=")[0] for override in self.overrides]
        kept = [each for each in overrides if not any(_concerns(each, name) for name in names)]
        return (*kept, *self.overrides)


def _concerns(override: str, name: str) -> bool:
    """True if the override sets `name`, or anything inside the group of that name."""
    key = override.lstrip("+~").partition("=")[0]
    return key == name or key.startswith(f"{name}.") or f"@{name}." in key


def change_from(values: Mapping[str, Any]) -> Change:
    """The change that `dataclasses.asdict` has turned into this dictionary.

    The dictionary may have been stored as JSON, which turns the tuple of overrides into a list.
    """
    return Change(**{**values, "overrides": tuple(values["overrides"])})
