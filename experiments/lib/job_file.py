"""Jobs composed beforehand, in a JSON file: for machines with torch, but without Hydra.

The file has the node of the default job, and for each job its overrides and those fields that
differ. A node is resolved: its `_target_` is called with its other entries, and nothing else is
left to do.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fastloop.core.loading_settings import LOADING
from fastloop.trial.job import Job, crop_images

Node = dict[str, Any]
Settings = Mapping[str, Any]
"""Options and settings by the names that the command line has for them."""
OUTPUTS = "$FASTLOOP_OUTPUTS"
"""In the file, the folder of that environment variable, or `outputs`."""


def overrides_of(settings: Settings) -> tuple[str, ...]:
    """The settings as overrides of the command line."""
    return tuple(
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in settings.items()
    )


def read_job(path: Path, *overrides: str) -> Job:
    """The file's job with these overrides; raises KeyError if it has none."""
    content = json.loads(path.read_text())
    node = content["jobs"].get(" ".join(overrides))
    if node is None:
        raise KeyError(f"{path.name} has no job {' '.join(overrides)}")
    return crop_images(_build(content["default"] | node))


def job_nodes(all_overrides: Iterable[tuple[str, ...]]) -> Node:
    """The content of a file with these jobs, composed by Hydra."""
    default = _compose_node()
    jobs = {
        " ".join(overrides): dict(_difference(_compose_node(*overrides), default))
        for overrides in sorted(all_overrides)
    }
    return {"default": default, "jobs": jobs}


def write_jobs(path: Path, all_overrides: Iterable[tuple[str, ...]]) -> None:
    """Write the file, a line a job."""
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
    from fastloop.config.combinations import compose_values
    from fastloop.sweep.request import job_config

    values = _portable(job_config(compose_values(*overrides)))
    loading = {name: values.pop(name) for name in LOADING}
    values["loading"] = {"_target_": "fastloop.core.loading_settings.LoadingSettings", **loading}
    return {"_target_": "fastloop.trial.job.Job", **values}


def _difference(node: Node, default: Node) -> Iterator[tuple[str, Any]]:
    """The fields that the default lacks or has another value for."""
    for name, value in node.items():
        if name not in default or default[name] != value:
            yield name, value


def _portable(node: Any) -> Any:
    """The node with OUTPUTS in the place of this process's own outputs folder, and without an
    option's requirements."""
    if isinstance(node, dict):
        # No environment is built for these jobs: they run with the libraries that are there.
        return {name: _portable(value) for name, value in node.items() if name != "requirements"}
    outputs = os.environ.get("FASTLOOP_OUTPUTS", "outputs")
    is_inside = isinstance(node, str) and node.startswith(f"{outputs}/")
    return OUTPUTS + node.removeprefix(outputs) if is_inside else node
