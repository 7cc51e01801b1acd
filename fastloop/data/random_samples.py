"""Detection of random samples: a store would repeat one draw of each in every epoch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import optree
import torch

from fastloop.data.seeded import seed_generators
from fastloop.data.store_folder import spread_indices

SEEDS = 1, 2
"""Seeds of the generators for two readings of a sample."""
Value = tuple[Any, ...]
Plain = bool | int | float | complex | str | bytes


def refuse_random(samples: Any, name: str, remedy: str) -> None:
    """Raise ValueError if one of up to 16 samples is random; the generators stay as they are.

    name, remedy: the beginning and the end of the message.
    """
    # Each is read twice, with the generators of torch, numpy and Python seeded differently. It is
    # random if the values differ, or if a generator was drawn from and so ends in two states: a
    # random crop may happen to be the same twice. A Dataset that seeds the generators itself, as by
    # torch.manual_seed(index), has equal values and leaves equal states.
    for index in spread_indices(len(samples)) if len(samples) else ():
        reads = [_read(samples, index, seed) for seed in SEEDS]
        (value, draws), (other, its_draws) = reads
        drawn_from = [name for name in draws if its_draws.get(name, draws[name]) != draws[name]]
        if drawn_from:
            reason = f"it draws from the generator of {' and '.join(drawn_from)}"
        elif value != other:
            reason = "it differs when it is read again"
        else:
            continue
        problem = f"{name} has random samples (sample {index}: {reason})"
        raise ValueError(
            f"{problem}, and a store repeats one draw of each in every epoch: {remedy}"
        )


def _read(samples: Any, index: int, seed: int) -> tuple[list[Value], dict[str, Value]]:
    """The leaves of a sample, and the states of the generators that it has changed."""
    # a sample that can't be read is reported when the store is written
    with seed_generators(seed):
        before = _states()
        try:
            leaves = optree.tree_leaves(samples[index])
        except Exception:
            return [], {}
        after = _states()
    changed = {name: state for name, state in after.items() if state != before[name]}
    return [value for leaf in leaves if (value := _value(leaf))], changed


def _states() -> dict[str, Value]:
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": (bytes(torch.get_rng_state().numpy()),),
        "numpy": (kind, bytes(np.asarray(keys)), *rest),
        "random": random.getstate(),
    }


def _value(leaf: Any) -> Value:
    """The bits by which two readings of a leaf are compared; empty for a leaf that no store
    holds."""
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or leaf.is_nested:
            return ()
        leaf = leaf.detach().cpu().contiguous()
        data = leaf.reshape(-1).view(torch.uint8) if leaf.numel() else leaf
        return str(leaf.dtype), tuple(leaf.shape), bytes(data.numpy()) if leaf.numel() else b""
    if isinstance(leaf, np.ndarray | np.generic):
        return str(leaf.dtype), leaf.shape, leaf.tobytes()
    return (repr(leaf),) if isinstance(leaf, Plain) else ()
