"""Messages for an object that is no Dataset, Tracker or other option, with the missing members."""

from __future__ import annotations

from typing import Any

CALLED = ("__call__", "__len__", "__getitem__", "__iter__")
"""Special methods that a Protocol may ask for."""


def kind_message(setting: str, thing: Any, kind: str) -> str:
    """The message for a thing that is no `kind`, the name of a Protocol, with its missing
    members."""
    if thing is None:  # typed as null, for an option that needs one
        return f"{setting}=null: allowed: one option, as null is no {kind}"
    cls = type(thing)
    text = f"{setting}: {cls.__module__}.{cls.__qualname__} is no {kind}"
    lacking = sorted(name for name in _members(kind) if not hasattr(thing, name))
    return f"{text}: it lacks {', '.join(lacking)}" if lacking else text


def _members(kind: str) -> set[str]:
    """Names of the attributes and methods of the Protocol of that name."""
    from fastloop.core import device_protocols, plan, protocols, sweep_protocols

    modules = (device_protocols, plan, protocols, sweep_protocols)
    # `kind` may name a class that is no Protocol: then nothing is lacking
    protocol = next((vars(module)[kind] for module in modules if kind in vars(module)), object)
    return {
        name
        for cls in protocol.__mro__
        if getattr(cls, "_is_protocol", False)
        for name in (*vars(cls), *getattr(cls, "__annotations__", {}))
        if not name.startswith("_") or name in CALLED
    }
