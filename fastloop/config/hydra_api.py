"""Set up Hydra for fastloop, and compose the configuration of one job by Hydra's Compose API.

The setup registers the yaml files of experiments/ as options, and the text of --help.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from fastloop.config.catalogue import experiment_files, resource_folder
from fastloop.config.command_line import CommandLine
from fastloop.config.composed_defaults import remove_unfit_defaults
from fastloop.config.help import help_text
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import pass_to_own_code

CONFIG_NAME = "config"
"""Name of the main yaml file without its ending, unless --config-name names another file."""
VERSION_BASE = "1.3"
"""The version of Hydra with the wanted defaults, see version_base in Hydra's documentation."""
VALUE_IN_OPTION = re.compile(r"(?!hydra\.)\w+(\.\w+)+=")
"""Pattern of the start of an override that changes a value in an option, such as `dataset.count=`.
Such an override chooses no option."""


# Reading all files of experiments/ would add a quarter of a second to the start of each command.
class _Files(dict[str, Any]):
    """A group of Hydra's ConfigStore that holds the paths of files, and reads a file on first use.

    `group[name]`, by which Hydra reads a file, returns its content. values() and get() return
    paths.
    """

    def __getitem__(self, name: str) -> ConfigNode:
        path = super().__getitem__(name)
        # A plugin of Hydra's may have registered its own configuration in the group.
        if isinstance(path, ConfigNode):
            return path
        return ConfigNode(
            name=name, node=_read_yaml(path), group=None, package="_global_", provider=str(path)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Files:
        # Hydra copies its store whenever it composes a configuration. The files need no copy.
        return self


@cache
def _read_yaml(path: Path) -> DictConfig:
    """The content of a yaml file, which is read once in a process."""
    node: Any = OmegaConf.load(path)
    return node


def set_up_hydra() -> None:
    """Register the options of experiments/, and the resolver ${fastloop_help:} for Hydra's --help.

    The resolver returns fastloop's text, in which each $ is escaped for Hydra's help template.
    """
    _register_experiments()
    OmegaConf.register_new_resolver(
        "fastloop_help", lambda: help_text().replace("$", "$$"), replace=True
    )


@cache
def _register_experiments() -> None:
    """Register the sweeps of experiments/, under the names of `experiment_files`, and the options.

    The option in experiments/<question>/<group>/<option>.yaml becomes <group>=<question>/<option>.
    Its class is imported from experiments.<question>.<group>.<option>.
    """
    folder = resource_folder("experiments")
    # The public ConfigStore.store() takes contents, for which all files would have to be read.
    groups = ConfigStore.instance().repo
    sweeps = {f"{name}.yaml": path for name, path in experiment_files().items()}
    groups["experiment"] = _Files({**groups.get("experiment", {}), **sweeps})
    for path in folder.glob("*/*/*.yaml"):
        of_group = groups.setdefault(path.parent.name, {})
        of_group.setdefault(path.parent.parent.name, _Files())[path.name] = path
    # In a wheel the folder experiments is in fastloop/resources, which is not on Python's path.
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))


@contextmanager
def compose_api(line: CommandLine) -> Iterator[str]:
    """Open a context for `hydra_compose`, with conf/ or the folders that the command line names.

    Yields the name of the main yaml file.
    """
    set_up_hydra()
    if line.config_dir:
        _add_config_dir(Path(line.config_dir).absolute())
    folder = Path(line.config_path or resource_folder("conf")).absolute()
    # Hydra refuses to be initialized twice in a process, unless its global object is cleared.
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(folder), job_name="fastloop", version_base=VERSION_BASE):
        yield line.config_name or CONFIG_NAME


def _add_config_dir(folder: Path) -> None:
    """Add the folder of -cd to Hydra's search path; raises ConfigError if it does not exist."""
    if not folder.is_dir():
        raise ConfigError(f"--config-dir={folder}: no such folder")

    # The Compose API has no parameter for a second folder, but Hydra asks each plugin for folders.
    class ConfigDir(SearchPathPlugin):
        """Search path plugin that adds the folder of -cd."""

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            """Put the folder before Hydra's entry `schema` or, without this entry, first."""
            # hydra.initialize_config_dir appends `schema` only after it has called the plugins, so
            # the folder comes first, before conf/.
            anchor = SearchPathQuery(provider="schema")
            search_path.prepend("command-line", f"file://{folder}", anchor)

    Plugins.instance().register(ConfigDir)


def hydra_compose(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration by Hydra, and remove or replace the defaults that do not fit it.

    The configuration contains Hydra's own part, `hydra`. name: name of the main yaml. The caller
    has to be in the context of `compose_api`. Raises ConfigError for a missing folder of options,
    and Hydra's exceptions.
    """
    # Hydra only warns of a missing folder, and then of each option that it would have contained.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"provider=hydra\.searchpath")
        try:
            cfg = hydra.compose(name, [*pass_to_own_code(overrides)], return_hydra_config=True)
        except UserWarning as warning:
            path = re.search(r"path=(.*) is not available", str(warning))
            missing = path.group(1) if path else warning
            raise ConfigError(f"hydra.searchpath: there is no folder {missing}") from None
    remove_unfit_defaults(cfg, name, overrides)
    return cfg


def change_values(cfg: DictConfig, changes: Sequence[Override]) -> None:
    """Set these values in the configuration, in place; raises OmegaConf's errors."""
    for change in changes:
        OmegaConf.update(cfg, change.key_or_group, change.value())
