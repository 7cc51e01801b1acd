"""`loader=tf_data`: TensorFlow's tf.data over arrays, handed to torch by DLPack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import optree
import torch
from torch.utils.dlpack import from_dlpack

from fastloop.generators import Batches, closed_at_the_end
from fastloop.optional import check_found, imported
from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option

NEEDS = "tensorflow", "loader=tf_data", "pip install tensorflow-cpu"


@option
class TfData:
    """map(gather) and prefetch(AUTOTUNE) over the epoch's batches of indices, on its own threads.

    The indices are shuffled before, by the order of the job: tf.data's own shuffle is uniform only
    with a buffer of the whole dataset, and knows no order but that.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise Unsupported without TensorFlow."""
        check_found(*NEEDS)

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from arrays that TensorFlow reads into memory first.

        Its pool of threads lives as long as the process, idle between epochs.
        """
        honours_only("tf_data", plan, *self.honours)
        source = _read(self.store.open(prepared.folder))
        indices = partial(epoch_indices, plan.order, prepared.num_samples, plan.seed)
        with closed_at_the_end(lambda epoch: source.batches(indices(epoch), plan)) as epochs:
            yield epochs


class _Source:
    """Arrays in TensorFlow's memory."""

    def __init__(self, tf: Any, arrays: list[np.ndarray], structure: Any) -> None:
        self._tf, self._structure = tf, structure
        self._dtypes = [torch.from_numpy(array[:0]).dtype for array in arrays]
        self._arrays = [tf.constant(np.asarray(array)) for array in arrays]

    def batches(self, indices: torch.Tensor, plan: Plan) -> Batches:
        auto = self._tf.data.AUTOTUNE
        epoch = (
            self._cut(indices.numpy(), plan)
            .map(self._gathered, num_parallel_calls=auto, deterministic=True)
            .prefetch(auto)
        )
        for leaves in epoch:
            tensors = map(self._to_torch, leaves, self._dtypes)
            yield optree.tree_unflatten(self._structure, tensors)

    def _cut(self, indices: np.ndarray, plan: Plan) -> Any:
        """The indices of each batch: `batch` would put them together one by one, and 300,000
        integers in batches of 300 took twice as long."""
        data = self._tf.data.Dataset
        whole = len(indices) - len(indices) % plan.batch_size
        cut = data.from_tensor_slices(indices[:whole].reshape(-1, plan.batch_size))
        if whole == len(indices) or plan.drop_last:
            return cut
        return cut.concatenate(data.from_tensors(indices[whole:]))

    def _gathered(self, indices: Any) -> tuple[Any, ...]:
        return tuple(self._tf.gather(array, indices) for array in self._arrays)

    def _to_torch(self, leaf: Any, dtype: torch.dtype) -> torch.Tensor:
        try:
            # DLPack of older TensorFlow calls booleans uint8
            return from_dlpack(self._tf.experimental.dlpack.to_dlpack(leaf)).view(dtype)
        except self._tf.errors.InvalidArgumentError:  # a dtype that it does not hand over
            return torch.from_numpy(leaf.numpy())


def _read(rows: Tree) -> _Source:
    """The arrays in TensorFlow's memory: it copies them, and no map of a file is left."""
    arrays, structure = optree.tree_flatten(rows)
    if not all(isinstance(array, np.ndarray) for array in arrays):
        raise Unsupported("rows are arrays: store@loader.store=npy gives such")
    return _Source(_tensorflow(), arrays, structure)


def _tensorflow() -> Any:
    """TensorFlow, silent and without a GPU: it would take all of its memory."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # It tells of oneDNN before any level of its log counts; nothing here is computed by that.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    tf = imported(*NEEDS)
    tf.get_logger().setLevel("ERROR")
    tf.config.set_visible_devices([], "GPU")
    return tf
