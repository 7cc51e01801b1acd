"""Turn the overrides of a command line into an experiment's file, which `experiment=` selects."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fastloop.config.catalogue import group_names


def experiment_yaml(overrides: Sequence[str], question: str) -> str | None:
    """The text of an experiment's file; None if a file can't hold one of the overrides.

    A file holds options and values. It can't hold deletions, several values of a setting, or
    overrides with a package, such as store@loader.store=npy. question: the comment above the
    options, as in the files of experiments/.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    options = []
    values = OmegaConf.create({})
    for override in parsed:
        if override.is_delete() or override.is_sweep_override() or override.package:
            return None
        # An experiment can't choose another one, and settings of Hydra belong to the command.
        if override.key_or_group.startswith("hydra") or override.key_or_group == "experiment":
            return None
        if _is_option(override):
            options.append({f"override /{override.key_or_group}": override.value()})
        else:
            OmegaConf.update(values, override.key_or_group, override.value(), force_add=True)
    head = f"# @package _global_\n# {question}\n"
    defaults = OmegaConf.to_yaml(OmegaConf.create({"defaults": options})) if options else ""
    return head + defaults + (OmegaConf.to_yaml(values) if values else "")


def _is_option(override: Override) -> bool:
    """True if the override chooses an option of a group.

    This includes groups such as decoder, of which a job has no option by default.
    """
    return override.key_or_group in group_names() and not isinstance(override.value(), dict)
