"""Sweeps and options of experiments/ as configurations of Hydra."""

from __future__ import annotations

import sys
from functools import cache

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from fastloop.config.catalogue import experiment_files, resource_folder


@cache
def register_experiments() -> None:
    """Register the sweeps of experiments/ under the names of `experiment_files`.

    Options in experiments/<question>/<group>/<option>.yaml become <group>=<question>/<option>;
    their classes are imported from experiments.<question>.<group>.<option>.
    """
    folder = resource_folder("experiments")
    sweeps = {path: ("experiment", name) for name, path in experiment_files().items()}
    options = {
        path: (f"{path.parent.name}/{path.parent.parent.name}", path.stem)
        for path in folder.glob("*/*/*.yaml")
    }
    for path, (group, name) in (sweeps | options).items():
        node = OmegaConf.to_container(OmegaConf.load(path))
        store = ConfigStore.instance()
        store.store(group=group, name=name, package="_global_", node=node, provider=str(path))
    # in a wheel the folder experiments is in fastloop/resources, which is not on Python's path
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))
