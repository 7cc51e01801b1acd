"""A benchmark's model: what it can be fed with, and how it begins each start as the seed has it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastloop.ranks import world_size
from fastloop.types import Leaves, Setup, Unsupported

T = TypeVar("T")
SYNCHRONIZED = "synchronized"
"""What is kept under that name of a training begun by several ranks."""
LABEL = ("int64", ())
"""dtype and shape of a class label."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Of autocast, by the name of the precision."""
UNFIT = {
    "Expected more than 1 value per channel": "a batch of one sample has nothing that BatchNorm"
    " could take a mean of: drop_last=true leaves it out where it is the last, another batch_size"
    " may have none",
    "index out of range in self": "the data holds numbers that the model has no embedding for: of"
    " model=transformer, model.vocabulary has to be the largest + 1",
}
"""What torch says of a batch that a model can't be fed with, and what it means."""


def check_classified(
    model: str,
    num_classes: int | None,
    sample: Leaves | None,
    ndims: tuple[int, ...] | None = None,
    wanted: str = "float32 input",
) -> None:
    """Raise Unsupported where the samples are not (float32 input, int64 class label) pairs, the
    input of one of these numbers of dimensions; sample None: not known yet."""
    got = "samples without classes" if num_classes is None else ""
    if sample:
        fits = len(sample) == 2 and sample[0][0] == "float32" and sample[1] == LABEL
        if not fits or (ndims and len(sample[0][1]) not in ndims):
            got = shown(sample)
    if got:
        raise unfit(model, f"({wanted}, int64 class label)", got)


def check_images(model: str, num_classes: int | None, sample: Leaves | None) -> None:
    """Raise Unsupported where the samples are not (float32 image, int64 class label) pairs."""
    wanted = "float32 (channels, height, width) or (height, width) image"
    check_classified(model, num_classes, sample, (2, 3), wanted)


def classes_of(num_classes: int | None) -> int:
    """The number; `check` has refused data without classes."""
    assert num_classes is not None
    return num_classes


def unfit(model: str, wanted: str, got: str) -> Unsupported:
    """What to raise for samples that a model can't be fed with."""
    why = f"model={model} needs {wanted} samples, got {got}"
    return Unsupported(f"{why}; benchmark=traversal takes any")


def shown(sample: Leaves) -> str:
    """The leaves as a reader sees them."""
    return f"({', '.join(f'{dtype}{list(shape)}' for dtype, shape in sample)})"


def of_images(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The network, fed with (batch, height, width) where the samples have no channels."""
    if len(input_shape) == 3:
        return network
    return nn.Sequential(nn.Unflatten(1, (1, input_shape[0])), network)


def for_channels(layer: nn.Conv2d, input_shape: tuple[int, ...]) -> nn.Conv2d:
    """The first layer itself where the samples have its channels; else a new one, begun alike."""
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if channels == layer.in_channels:
        return layer
    sizes: Any = (layer.kernel_size, layer.stride, layer.padding)
    new = nn.Conv2d(channels, layer.out_channels, *sizes, bias=layer.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new


def check_fed(error: Exception) -> None:
    """Raise Unsupported where this was raised because the model can't be fed with a batch."""
    for said, why in UNFIT.items():
        if said in str(error):
            raise Unsupported(why) from error


def built(setup: Setup) -> nn.Module:
    """A new module on the host, the same for the same seed. Raises Unsupported as its model."""
    setup.model.check(setup.num_classes, setup.sample)
    torch.manual_seed(setup.seed)
    return setup.model.build(setup.sample[0][1], setup.num_classes)


def begun(setup: Setup, name: str, make: Callable[[nn.Module], T]) -> T:
    """What `make` gives for the module on the device, kept under that name for later starts.

    Then it is given again, and the module's tensors are set back in place: what an execution has
    compiled or captured in the warm-up serves in the window.
    """
    fresh = built(setup)
    if name in setup.kept:
        module, made = setup.kept[name]
        _set_back(module, fresh)
        return made
    setup.kept.clear()  # benchmarks come one after the other, and one model is enough to hold
    module = fresh.to(setup.device)
    made = make(module)
    setup.kept[name] = module, made
    return made


def synchronized(module: nn.Module, setup: Setup) -> nn.Module:
    """The module itself, or what averages its gradients over the ranks in every step."""
    if world_size() == 1:
        return module
    # BatchNorm stays each rank's own, as everywhere in DDP; its running figures are rank 0's
    devices = [setup.device] if setup.device.type == "cuda" else None
    setup.kept[SYNCHRONIZED] = DistributedDataParallel(module, device_ids=devices)
    return setup.kept[SYNCHRONIZED]


def unsynchronized(setup: Setup) -> AbstractContextManager[Any]:
    """Steps in it leave each rank's gradients its own."""
    return setup.kept[SYNCHRONIZED].no_sync() if SYNCHRONIZED in setup.kept else nullcontext()


def evened(setup: Setup, may_differ: bool) -> AbstractContextManager[Any]:
    """In it a rank that runs out of batches goes on to answer the others, where that may be."""
    # It costs one more collective a step, so that it is only there where it is needed.
    wanted = may_differ and SYNCHRONIZED in setup.kept
    return setup.kept[SYNCHRONIZED].join() if wanted else nullcontext()


def at_precision(
    function: Callable[..., torch.Tensor], setup: Setup
) -> Callable[..., torch.Tensor]:
    """The function, under autocast unless the precision is float32."""
    if setup.precision not in DTYPES:
        return function
    return torch.autocast(setup.device.type, DTYPES[setup.precision])(function)


@torch.no_grad()
def _set_back(module: nn.Module, fresh: nn.Module) -> None:
    for old, new in zip(_tensors(module), _tensors(fresh), strict=True):
        old.copy_(new)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
