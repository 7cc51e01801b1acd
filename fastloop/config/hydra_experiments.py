"""The sweeps and options of experiments/ as configurations that Hydra can choose."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from fastloop.config.catalogue import experiment_files, resource_folder


class _Files(dict[str, Any]):
    """A group of Hydra's ConfigStore: file paths by name; a file is read on first use.

    Reading all files takes a quarter of a second, at the start of each command. Hydra asks by
    `group[name]` alone: values() and get() return the paths.
    """

    def __getitem__(self, name: str) -> ConfigNode:
        path = super().__getitem__(name)
        # A plugin of Hydra's may have registered its own configuration in the group.
        if isinstance(path, ConfigNode):
            return path
        return ConfigNode(
            name=name, node=_read(path), group=None, package="_global_", provider=str(path)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Files:
        # Hydra copies its store whenever it composes a configuration.
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
