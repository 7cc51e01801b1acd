"""The advice for samples that can't be measured as they are: of several lengths, or of text."""

from __future__ import annotations

from fastloop.core.protocols import Dataset
from fastloop.core.types import BadData, LengthsDiffer, UnusableLeaves
from fastloop.data.image_size_advice import add_remedy

OWN_COLLATE = "collate=<module>.<function>"
CALLERS = "which loader=raw, for example, calls"
"""Parts of the advice: the setting of a user's collate, and a loader that calls the collate."""


def advise(error: BadData, dataset: Dataset) -> str:
    """The message of an error about all samples of a dataset, in one line, with the remedy."""
    # An error of a DataLoader worker has a whole traceback, which ends with the class and message.
    kind = type(error)
    prefix = f"{kind.__module__}.{kind.__qualname__}: "
    line = str(error).strip().splitlines()[-1].removeprefix(prefix)
    if isinstance(error, UnusableLeaves):
        remedy = f"return tensors, or make them by a collate of your own, {OWN_COLLATE}, {CALLERS}"
        return f"{_name_setting(dataset)}: {line}; {remedy}"
    is_declared = getattr(dataset, "ragged", ...)
    if is_declared is ...:
        return add_remedy(line, dataset)
    name = _name_setting(dataset)
    alike = f"a collate of your own, {OWN_COLLATE}, {CALLERS}, may make them alike"
    if not isinstance(error, LengthsDiffer):
        return f"{name}: {line}; {alike}"
    ragged = "" if is_declared is None else "dataset.ragged=true "
    pad = f"{ragged}collate=pad benchmark=traversal pads them to the longest of each batch"
    return f"{name}: {line}; {pad}; {alike}"


def _name_setting(dataset: Dataset) -> str:
    """The setting that names the user's own Dataset, or the name of another dataset."""
    target = getattr(dataset, "target", None)
    return f"dataset={target}" if target else f"dataset {dataset.label}"
