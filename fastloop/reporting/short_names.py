"""Find the shortest distinct names of jobs, such as `pil, 2 workers`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.core.result import Result

LOADER, DATASET = "loader", "dataset"
NAME = re.compile(r"(?!(?:true|false|null|none)$)[a-z_][\w.:-]*", re.IGNORECASE)
"""A value that is understood without its setting, such as an option's name; `true` is not."""
NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")
SETTING = re.compile(r"\+{0,2}[\w.@/]+=|~[\w.@/]+$")
"""The beginning of a setting in a job's name; `~count` is one that the job leaves out."""
OPEN_QUOTE = re.compile(r"[^=]*=(['\"])(?!.*(?<!\\)\1$)")
"""A setting with a quoted value, up to a blank inside of the quotes."""


def short_names(results: Sequence[Result]) -> dict[str, str]:
    """Name of each job -> a short name, of the options and settings that differ among these jobs.

    A value that is a word is shown alone, unless another setting has the same value. A number is
    shown with its unit, such as `2 workers`. The short name is the loader if nothing differs.
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
    # Short names have to be distinct, as tables refer to jobs by them: else the full names are
    # used.
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
    """The parts of the job's name, `<loader> <dataset> <setting>=<value> ...`, by setting."""
    loader, _, *words = [*split_name(result.name), ""]
    settings = [word.lstrip("+").partition("=") for word in words if word]
    return {LOADER: loader, DATASET: result.dataset} | {key: value for key, _, value in settings}


def _differences(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys for which not all jobs have the same value."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({values.get(key) for values in settings}) > 1]


def _label(key: str, keys: Sequence[str]) -> str:
    """The key's last part, or the whole key if another key has the same last part."""
    last = key.rpartition(".")[2]
    is_clear = sum(other.rpartition(".")[2] == last for other in keys) == 1
    left_out = "~" if key.startswith("~") else ""
    return f"{left_out}{last.lstrip('~')}" if is_clear else key


def _describe(label: str, value: str, is_unique: bool) -> str:
    """The words for a value in a short name. is_unique: no other setting has this value."""
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
