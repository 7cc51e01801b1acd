"""Paths of the user's own files that datasets read: looked for before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.config.catalogue import find_option, option_values
from fastloop.config.combinations import Combination
from fastloop.config.messages import ConfigError
from fastloop.core.types import BadData, Unsupported
from fastloop.data.dataset_files import own_path

GROUP = "dataset"


def refuse_missing_files(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError if none of these jobs finds the files of its dataset.

    If only some jobs lack theirs, the others are measured, and rows of the table have the reasons.
    """
    reasons = [_missing_files(each) for each in combinations]
    if reasons and all(reasons):
        raise ConfigError("; ".join(dict.fromkeys(reasons)))


def _missing_files(combination: Combination) -> str:
    """The reason why the job's dataset can't find the user's files; empty if it can, and for a
    Dataset of the user's own."""
    values, name = combination.values[GROUP], combination.choices.get(GROUP, "")
    option = find_option(GROUP, name)
    if option is None or values.get("_target_") != option_values(GROUP, name)["_target_"]:
        return ""
    for setting in option.settings:
        path = values.get(setting.name)
        # Other settings of this kind may be null: their meaning says what is read then.
        if not setting.is_own_path or (path is None and setting.explains_null):
            continue
        # A value of another kind is refused when the dataset is built.
        if path is not None and not isinstance(path, str):
            continue
        try:
            own_path(path, f"{GROUP}={name}", setting.meaning, f"{GROUP}.{setting.name}")
        except (Unsupported, BadData) as error:
            return str(error)
    return ""
