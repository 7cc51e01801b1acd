"""Describe the machine and the packages with which a job's trials run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from packaging.utils import canonicalize_name

from fastloop.core.launcher import Launcher
from fastloop.core.machine import describe_machine
from fastloop.core.types import Unsupported
from fastloop.fastloader import has_core
from fastloop.processes.environments import read_environment

ENGINE = "FastLoader's engine"
"""Name under which the versions list FastLoader's engine, "native" or "python"."""


def describe_environment(launcher: Launcher) -> dict[str, Any]:
    """The description of the machine, with FastLoader's engine as one of the versions.

    If the launcher starts processes in an environment of the job's own, the versions of its
    packages replace the versions in this process.
    """
    machine = describe_machine()
    versions = machine["versions"] | {ENGINE: "native" if has_core() else "python"}
    if launcher.environment is not None:
        # An environment that could not be built has no packages, and its job no trials.
        with suppress(Unsupported):
            packages = read_environment(launcher.environment).packages
            # A package may call itself tensorflow_cpu, while pip and fastloop use tensorflow-cpu.
            versions |= {canonicalize_name(name): number for name, number in packages.items()}
    return machine | {"versions": versions}
