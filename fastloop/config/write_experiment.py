"""Turn the overrides of a command line into the text of a file that `experiment=` takes."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fastloop.config.catalogue import default_options


def experiment_yaml(overrides: Sequence[str], question: str) -> str | None:
    """The text of an experiment's file; None if a file can't hold one of the overrides.

    A file holds options and values, but neither deletions nor options of groups without a default.
    question: the comment in its first line, as in the files of experiments/.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    options = []
    values = OmegaConf.create({})
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
