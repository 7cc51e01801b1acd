"""Jobs composed beforehand, in a JSON file, for machines with torch but without Hydra.

The file has the node of the default job, and for each other job its overrides and the fields in
which it differs. A node is a resolved configuration: to make its object, `_target_` is called with
the other entries.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fastloop.core.loading_settings import LOADING
from fastloop.data.cropped_dataset import crop_dataset
from fastloop.trial.job import Job

Node = dict[str, Any]
Settings = Mapping[str, Any]
"""Name of an option or setting on the command line -> its value."""
OUTPUTS = "$FASTLOOP_OUTPUTS"
"""Stands in the file for the value of that environment variable, or for `outputs`."""


def overrides_of(settings: Settings) -> tuple[str, ...]:
    """The settings as overrides on the command line."""
    return tuple(
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in settings.items()
    )


def read_job(path: Path, *overrides: str) -> Job:
    """The file's job with these overrides. Raises KeyError if the file has none."""
    content = json.loads(path.read_text())
    node = content["jobs"].get(" ".join(overrides))
    if node is None:
        raise KeyError(f"{path.name} has no job {' '.join(overrides)}")
    job = _build(content["default"] | node)
    return replace(job, dataset=crop_dataset(job.dataset, job.transform))


def job_nodes(all_overrides: Iterable[tuple[str, ...]]) -> Node:
    """The content of a file with these jobs, which Hydra composes."""
    default = _compose_node()
    jobs = {
        " ".join(overrides): dict(_difference(_compose_node(*overrides), default))
        for overrides in sorted(all_overrides)
    }
    return {"default": default, "jobs": jobs}


def write_jobs(path: Path, all_overrides: Iterable[tuple[str, ...]]) -> None:
    """Write the file, with one line per job."""
    content = job_nodes(all_overrides)
    lines = [f"  {json.dumps(key)}: {json.dumps(node)}" for key, node in content["jobs"].items()]
    jobs = ",\n".join(lines)
    text = f'{{\n "default": {json.dumps(content["default"])},\n "jobs": {{\n{jobs}\n }}\n}}\n'
    path.write_text(text)


def _build(node: Any) -> Any:
    """The object that a node describes."""
    if isinstance(node, str):
        return node.replace(OUTPUTS, os.environ.get("FASTLOOP_OUTPUTS", "outputs"))
    if isinstance(node, list):
        return [_build(item) for item in node]
    if not isinstance(node, dict):
        return node
    values = {name: _build(value) for name, value in node.items() if name != "_target_"}
    if "_target_" not in node:
        return values
    module, _, name = node["_target_"].rpartition(".")
    return getattr(import_module(module), name)(**values)


def _compose_node(*overrides: str) -> Node:
    """The node of a job."""
    from fastloop.config.composed_values import compose_values
    from fastloop.sweep.job_config import job_config

    values = _portable(job_config(compose_values(*overrides)))
    loading = {name: values.pop(name) for name in LOADING}
    values["loading"] = {"_target_": "fastloop.core.loading_settings.LoadingSettings", **loading}
    return {"_target_": "fastloop.trial.job.Job", **values}


def _difference(node: Node, default: Node) -> Iterator[tuple[str, Any]]:
    """The fields that the default node lacks, or for which it has another value."""
    for name, value in node.items():
        if name not in default or default[name] != value:
            yield name, value


def _portable(node: Any) -> Any:
    """The node with OUTPUTS in place of this process's outputs folder, and without an option's
    requirements."""
    if isinstance(node, dict):
        # No environment is built for these jobs; they run with the installed libraries.
        return {name: _portable(value) for name, value in node.items() if name != "requirements"}
    outputs = os.environ.get("FASTLOOP_OUTPUTS", "outputs")
    is_inside = isinstance(node, str) and node.startswith(f"{outputs}/")
    return OUTPUTS + node.removeprefix(outputs) if is_inside else node
