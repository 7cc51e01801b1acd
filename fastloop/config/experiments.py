"""Experiments: the sweeps and options of experiments/ as configurations of Hydra, and the overrides
of a command line as a file that `experiment=` takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from fastloop.config.catalogue import default_options, experiment_files, resource_folder


class _Files(dict[str, Any]):
    """A group of Hydra's ConfigStore: names and the paths of their files, each of which is read if
    its configuration is asked for."""

    # Reading all files takes a quarter of a second, at the start of each command.
    def __getitem__(self, name: str) -> ConfigNode:
        path = super().__getitem__(name)
        # A plugin of Hydra's may have registered its own configuration in the group.
        if isinstance(path, ConfigNode):
            return path
        return ConfigNode(
            name=name, node=_read(path), group=None, package="_global_", provider=str(path)
        )

    # Hydra copies its store whenever it composes a configuration.
    def __deepcopy__(self, memo: dict[int, Any]) -> _Files:
        return self


@cache
def _read(path: Path) -> DictConfig:
    node: Any = OmegaConf.load(path)
    return node


@cache
def register_experiments() -> None:
    """Register the sweeps of experiments/ under the names of `experiment_files`.

    Options in experiments/<question>/<group>/<option>.yaml become <group>=<question>/<option>;
    their classes are imported from experiments.<question>.<group>.<option>.
    """
    folder, groups = resource_folder("experiments"), ConfigStore.instance().repo
    sweeps = {f"{name}.yaml": path for name, path in experiment_files().items()}
    groups["experiment"] = _Files({**groups.get("experiment", {}), **sweeps})
    for path in folder.glob("*/*/*.yaml"):
        of_group = groups.setdefault(path.parent.name, {})
        of_group.setdefault(path.parent.parent.name, _Files())[path.name] = path
    # In a wheel the folder experiments is in fastloop/resources, which is not on Python's path.
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))


def experiment_yaml(overrides: Sequence[str], question: str) -> str | None:
    """The text of an experiment's file; None if a file can't hold one of the overrides.

    A file holds options and values, but neither deletions nor options of groups without a default.
    question: the comment in its first line, as in the files of experiments/.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    options, values = [], OmegaConf.create({})
    for override in parsed:
        if override.is_delete() or override.is_sweep_override() or override.package:
            return None
        if _is_option(override):
            options.append({f"override /{override.key_or_group}": override.value()})
        # An experiment can't choose another one, and settings of Hydra belong to the command.
        elif override.key_or_group.startswith("hydra") or override.key_or_group == "experiment":
            return None
        else:
            OmegaConf.update(values, override.key_or_group, override.value(), force_add=True)
    head = f"# @package _global_\n# {question}\n"
    defaults = OmegaConf.to_yaml(OmegaConf.create({"defaults": options})) if options else ""
    return head + defaults + (OmegaConf.to_yaml(values) if values else "")


def _is_option(override: Override) -> bool:
    return override.key_or_group in default_options() and not isinstance(override.value(), dict)
