"""Jobs as the command line makes them, from conf/ by plain yaml: for scripts that are to run where
there is no Hydra."""

import dataclasses
import importlib
import os
import re
from typing import Any

import yaml

from fastloop.catalogue import resource_folder
from fastloop.job import Job

Node = dict[str, Any]
ENVIRONMENT = re.compile(r"\$\{oc\.env:(\w+),(\w+)\}")


def plain_job(**chosen: Any) -> Job:
    """The default job, with other options by the name of their group and other settings by theirs;
    one of an option as `group__setting`."""
    config = _read("config")
    fields = [field.name for field in dataclasses.fields(Job)]
    groups = [one for one in config["defaults"] if isinstance(one, dict)]
    defaults = {name: option for one in groups for name, option in one.items()}
    options = {name: chosen.get(name, option) for name, option in defaults.items()}
    nodes = {name: _option(name, options[name]) for name in defaults if name in fields}
    for brought in [node.pop("", {}) for node in nodes.values()]:
        nodes |= {name: node for name, node in brought.items() if options[name] is None}
    settings = {name: chosen.get(name, config[name]) for name in fields if name not in nodes}
    for name, value in chosen.items():
        group, dotted, setting = name.partition("__")
        if dotted:
            nodes[group][setting] = value
    made: Node = {}
    for name in sorted(nodes, key=lambda name: name != "decoder"):  # which a dataset refers to
        made[name] = _made(nodes[name], settings | made)
    return Job(**made, **{name: _number(value) for name, value in settings.items()})


def _read(name: str) -> Node:
    return yaml.safe_load((resource_folder("conf") / f"{name}.yaml").read_text())


def _option(group: str, option: str | list[str] | None) -> Node:
    """What its yaml has, with the options that it brings; under "" those of other groups."""
    if option is None:
        return {}
    if isinstance(option, list):
        return {name: value for one in option for name, value in _option(group, one).items()}
    node = _read(f"{group}/{option}")
    for one in node.pop("defaults", []):
        if isinstance(one, str):  # of the same group, or _self_
            node |= _option(group, one) if one != "_self_" else {}
            continue
        ((where, name),) = one.items()
        there, _, key = where.removeprefix("override ").removeprefix("/").partition("@")
        if key.startswith("_global_."):
            node.setdefault("", {})[there] = _option(there, name)
        else:
            node[key] = _option(there, name)
    return node


def _made(node: Any, known: Node) -> Any:
    """The object that the node describes; None for an empty one."""
    if isinstance(node, str) and node.startswith("${") and node[2:-1] in known:
        return known[node[2:-1]]
    if isinstance(node, str):
        text = ENVIRONMENT.sub(lambda found: os.environ.get(found[1], found[2]), node)
        return _number(text)
    if not isinstance(node, dict):
        return node
    values = {name: _made(value, known) for name, value in node.items() if name != "_target_"}
    if "_target_" not in node:
        return values or None
    module, _, name = node["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), name)(**values)


def _number(value: Any) -> Any:
    """1e-3 is a text in YAML 1.1."""
    is_number = isinstance(value, str) and re.fullmatch(r"\d[\d.]*e-?\d+", value)
    return float(value) if is_number else value
