"""Find the shortest distinct names of jobs, such as `pil, 2 workers`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.core.result import Result

LOADER, DATASET = "loader", "dataset"
"""Keys of the first two parts of a job's name."""
NAME = re.compile(r"(?!(?:true|false|null|none)$)[a-z_][\w.:-]*", re.IGNORECASE)
"""A value that is understood without its setting, such as an option's name, but not `true`."""
NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")
"""A value that is a number."""
SETTING = re.compile(r"\+{0,2}[\w.@/]+=|~[\w.@/]+$")
"""The beginning of a setting in a job's name, or all of `~count`, a setting that the job lacks."""
OPEN_QUOTE = re.compile(r"[^=]*=(['\"])(?!.*(?<!\\)\1$)")
"""The beginning of a setting with a value in quotes that has not been closed yet."""


def short_names(results: Sequence[Result]) -> dict[str, str]:
    """Name of each job -> a short name, of the options and settings that differ among these jobs.

    A value that is a word is shown alone, unless another setting has the same value. A number is
    shown with its unit, such as `2 workers`. If a job has none of the differing settings, its short
    name is the loader. If two jobs would get the same short name, all jobs keep their names.
    """
    settings = {result.name: _settings(result) for result in results}
    keys = _differences(list(settings.values()))
    labels = {key: _label(key, keys) for key in keys}
    occurrences = Counter(
        value for key in keys for value in {each.get(key) for each in settings.values()}
    )
    short = {
        name: ", ".join(
            _describe(labels[key], values[key], occurrences[values[key]] == 1)
            for key in keys
            if key in values
        )
        for name, values in settings.items()
    }
    # Tables refer to jobs by their short names, so these have to be distinct.
    short = {name: text or settings[name][LOADER] for name, text in short.items()}
    return short if len({*short.values()}) == len(short) else {name: name for name in short}


def split_name(name: str) -> list[str]:
    """Split a job's name into the loader, the dataset and each setting; a value may contain blanks.

    >>> split_name("raw mydataset root='/my data' num_workers=2")
    ['raw', 'mydataset', "root='/my data'", 'num_workers=2']
    """
    words: list[str] = []
    for piece in name.split(" "):
        in_value = words and SETTING.match(words[-1])
        if in_value and (OPEN_QUOTE.match(words[-1]) or not SETTING.match(piece)):
            words[-1] += f" {piece}"
        else:
            words.append(piece)
    return words


def _settings(result: Result) -> dict[str, str]:
    """Loader, dataset and settings of a job: name -> value.

    The loader and the settings are read from the job's name, which is `<loader> <dataset>
    <setting>=<value> ...`.
    """
    loader, _, *words = [*split_name(result.name), ""]
    settings = [word.lstrip("+").partition("=") for word in words if word]
    return {LOADER: loader, DATASET: result.dataset} | {key: value for key, _, value in settings}


def _differences(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of the settings that differ between jobs. settings: name -> value, of each job."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({values.get(key) for values in settings}) > 1]


def _label(key: str, keys: Sequence[str]) -> str:
    """The last part of a setting's name, or the whole name if another one has the same last part.

    keys: names of all settings that differ, including `key`.
    """
    last = key.rpartition(".")[2]
    is_clear = sum(other.rpartition(".")[2] == last for other in keys) == 1
    left_out = "~" if key.startswith("~") else ""
    return f"{left_out}{last.lstrip('~')}" if is_clear else key


def _describe(label: str, value: str, is_unique: bool) -> str:
    """The words for a value in a short name.

    label: the name of the setting, shortened by `_label`. is_unique: True if no other setting has
    this value.
    """
    if label in (LOADER, DATASET) or (is_unique and NAME.fullmatch(value)):
        return value
    if label.startswith("~"):
        return label
    if not NUMBER.fullmatch(value):
        return f"{label}={value}"
    if label.startswith("num_"):
        counted = label.removeprefix("num_").replace("_", " ")
        return f"{value} {counted.removesuffix('s') if value == '1' else counted}"
    return f"{label.removesuffix('_size').replace('_', ' ')} {value}"
