"""The configuration with several choices of options, combined from the configurations with one
choice each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy

from omegaconf import DictConfig, OmegaConf

from fastloop.config.catalogue import default_options, options_of

CHOICE = re.compile(r"([\w@.]+)=(\w+)")
"""An override that chooses an option by its name."""
PARTS = {"decoder": "dataset", "store@loader.store": "loader"}
"""Group that belongs to another one, whose options change it -> the other group."""


def plain_choices(overrides: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Group -> overrides of it and its parts, if each override chooses an option of conf/ from
    another group; else None.

    >>> plain_choices(["loader=raw", "dataset=photos", "decoder=pil"])
    {'loader': ('loader=raw',), 'dataset': ('dataset=photos', 'decoder=pil')}
    """
    choices: dict[str, tuple[str, ...]] = {}
    names = set[str]()
    for text in overrides:
        match = CHOICE.fullmatch(text)
        name, option = match.groups() if match else ("", "")
        is_known = name in default_options() or name in PARTS
        if name in names or not is_known or option not in options_of(name.partition("@")[0]):
            return None
        names.add(name)
        group = PARTS.get(name, name)
        choices[group] = (*choices.get(group, ()), text)
    return choices


def combine_choices(
    base: DictConfig, chosen: Mapping[str, DictConfig], parts: Mapping[str, frozenset[str]]
) -> DictConfig | None:
    """The configuration with all choices; None if two of them change the same part.

    base: the configuration without choices.
    chosen: group -> the configuration with the choices from this group and its parts alone.
    parts: group -> the names at the top level that these choices change.
    """
    if sum(map(len, parts.values())) > len(set[str]().union(*parts.values())):
        return None
    # A choice that adds or removes a part changes the order of the parts.
    reordered = [group for group, cfg in chosen.items() if [*cfg] != [*base]]
    if len(reordered) > 1:
        return None
    combined = deepcopy(chosen[reordered[0]] if reordered else base)
    for group in chosen.keys() - {*reordered}:
        for part in parts[group]:
            combined[part] = chosen[group]._get_node(part)
    return combined


def parts_that_differ(base: DictConfig, changed: DictConfig) -> frozenset[str]:
    """Names at the top level that have other content, before interpolations are resolved."""
    before, after = (OmegaConf.to_container(cfg, resolve=False) for cfg in (base, changed))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # The text distinguishes 1 from True, and dicts in another order.
    return frozenset(
        str(name)
        for name in before.keys() | after.keys()
        if repr(before.get(name, ...)) != repr(after.get(name, ...))
    )
