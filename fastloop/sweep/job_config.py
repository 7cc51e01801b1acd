"""Select the part of a composed configuration that belongs to a job, and flatten it.

`job_config` leaves out the settings of the sweep; `flatten` names each setting, as in
`loader.num_threads`.
"""

from __future__ import annotations

from typing import Any

SWEEP_GROUPS = ("launcher", "tracker")
"""Option groups that belong to the sweep and not to a job."""
LOADER_BATCH_SIZE = "its own"
"""Value of the parameter batch_size for a loader that does not honour the setting."""


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> leaf, for all leaves of nested dicts.

    >>> flatten({"loader": {"num_threads": 2}, "epochs": 5})
    {'loader.num_threads': 2, 'epochs': 5}
    """
    if not isinstance(values, dict):
        return {prefix: values}
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves


def job_config(values: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that belongs to the job, without the sweep's settings."""
    from fastloop.sweep.settings import SWEEP_SETTINGS

    # `isolation` belongs to the launcher: conf/launcher passes it on.
    others = (*SWEEP_GROUPS, *SWEEP_SETTINGS, "isolation")
    return {name: node for name, node in values.items() if name not in others}
