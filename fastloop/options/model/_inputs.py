"""Checks of the samples that a model accepts."""

from __future__ import annotations

from fastloop.core.types import Leaves, Unsupported

LABEL = ("int64", ())
"""dtype and shape of a class label."""


def check_labelled(
    model: str,
    num_classes: int | None,
    sample: Leaves | None,
    ndims: tuple[int, ...] | None = None,
    expected: str = "float32 input",
) -> None:
    """Raise Unsupported if the samples are not (float32 input, int64 class label) pairs.

    ndims: numbers of dimensions that the input may have; None: any.
    sample: None if it is not known yet.
    """
    got = "samples without classes" if num_classes is None else ""
    if sample:
        fits = len(sample) == 2 and sample[0][0] == "float32" and sample[1] == LABEL
        if not fits or (ndims and len(sample[0][1]) not in ndims):
            got = describe_sample(sample)
    if got:
        raise unfit_error(model, f"({expected}, int64 class label)", got)


def require_classes(num_classes: int | None) -> int:
    """The number of classes; `check` has refused data without classes."""
    assert num_classes is not None
    return num_classes


def unfit_error(model: str, expected: str, got: str) -> Unsupported:
    """The error for samples that a model does not accept."""
    reason = f"model={model} needs {expected} samples, got {got}"
    return Unsupported(f"{reason}; benchmark=traversal takes any")


def describe_sample(sample: Leaves) -> str:
    """The dtypes and shapes of a sample's leaves, as messages show them."""
    return f"({', '.join(f'{dtype}{list(shape)}' for dtype, shape in sample)})"
