"""The requirements of a job's options: arguments of pip install, for libraries that they need.

An option lists them under `requirements` in its yaml file. A job with requirements runs in an
environment of its own.
"""

from __future__ import annotations

import shlex
from typing import Any

from fastloop.config.catalogue import REQUIREMENTS, without_requirements
from fastloop.config.messages import ConfigError

WITH_REQUIREMENTS = ("loader", "store", "loader.store", "placement")
"""Groups with options that may have requirements."""


def requirements_of(values: dict[str, Any]) -> tuple[str, ...]:
    """The requirements of a job's loader, store and placement, each once.

    Raises ConfigError unless they are lists of texts that pip's command line can contain.
    """
    found = [split_requirements(group, values[group])[1] for group in ("loader", "placement")]
    return (*dict.fromkeys(each for texts in found for each in texts),)


def split_requirements(group: str, node: Any) -> tuple[Any, list[str]]:
    """Split an option's node into (the node without requirements, the requirements).

    The requirements of a loader's store are removed from the node, and returned, as well.

    Raises ConfigError unless the requirements are lists of texts, and for a text that is empty or
    has an unmatched quotation mark.
    """
    if group not in WITH_REQUIREMENTS or not isinstance(node, dict):
        return node, []
    given = node.get(REQUIREMENTS) or []
    hint = "allowed: a list of arguments of pip install, such as [webdataset==0.2.100]"
    texts = isinstance(given, list) and all(isinstance(each, str) for each in given)
    if not texts or not all(map(str.strip, given)):
        raise ConfigError(f"{group}.requirements={given}: {hint}")
    for each in given:
        try:
            shlex.split(each)
        # The text has an unmatched quotation mark.
        except ValueError as error:
            raise ConfigError(f"{group}.requirements={given}: {error}; {hint}") from None
    rest = without_requirements(node)
    if group != "loader" or "store" not in node:
        return rest, given
    store, of_store = split_requirements("loader.store", node["store"])
    return rest | {"store": store}, [*given, *of_store]
