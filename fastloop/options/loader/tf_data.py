"""`loader=tf_data`: TensorFlow's tf.data over arrays, passed to torch by DLPack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import optree
import torch
from torch.utils.dlpack import from_dlpack

from fastloop.core.index_batches import epoch_indices
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Tree, Unsupported, option

LIBRARY = Library("tensorflow", "loader=tf_data", "pip install tensorflow-cpu")


@option
class TfDataLoader:
    """A tf.data pipeline: index batches -> `map(gather)` -> `prefetch(AUTOTUNE)`.

    TensorFlow's thread pool does the work. The indices are shuffled beforehand, by the order of the
    job: tf.data's shuffle is uniform only with a buffer of the whole dataset, and supports no other
    order.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without TensorFlow."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; TensorFlow reads the arrays into memory first.

        TensorFlow's thread pool lives as long as the process, and idles between epochs.
        """
        source = _read(self.store.open(prepared.folder))
        indices = partial(epoch_indices, plan.order, prepared.num_samples, plan.seed)
        with close_on_exit(lambda epoch: source.batches(indices(epoch), plan)) as epochs:
            yield epochs


class _Source:
    """Arrays in TensorFlow's memory."""

    def __init__(self, tf: Any, arrays: list[np.ndarray], structure: Any) -> None:
        self._tf = tf
        self._structure = structure
        self._dtypes = [torch.from_numpy(array[:0]).dtype for array in arrays]
        self._arrays = [tf.constant(np.asarray(array)) for array in arrays]

    def batches(self, indices: torch.Tensor, plan: Plan) -> Batches:
        auto = self._tf.data.AUTOTUNE
        epoch = (
            self._cut(indices.numpy(), plan)
            # deterministic: otherwise batches come in the order in which threads finish them.
            .map(self._gather, num_parallel_calls=auto, deterministic=True)
            .prefetch(auto)
        )
        for leaves in epoch:
            tensors = map(self._to_torch, leaves, self._dtypes)
            yield optree.tree_unflatten(self._structure, tensors)

    def _cut(self, indices: np.ndarray, plan: Plan) -> Any:
        """A tf.data dataset of the indices of each batch.

        `Dataset.batch` would concatenate single indices: an epoch of 300,000 integers in batches of
        300 took twice as long.
        """
        data = self._tf.data.Dataset
        whole = len(indices) - len(indices) % plan.loading.batch_size
        cut = data.from_tensor_slices(indices[:whole].reshape(-1, plan.loading.batch_size))
        if whole == len(indices) or plan.loading.drop_last:
            return cut
        return cut.concatenate(data.from_tensors(indices[whole:]))

    def _gather(self, indices: Any) -> tuple[Any, ...]:
        return tuple(self._tf.gather(array, indices) for array in self._arrays)

    def _to_torch(self, leaf: Any, dtype: torch.dtype) -> torch.Tensor:
        try:
            # Older TensorFlow exports booleans as uint8.
            return from_dlpack(self._tf.experimental.dlpack.to_dlpack(leaf)).view(dtype)
        except self._tf.errors.InvalidArgumentError:
            # TensorFlow does not export this dtype.
            return torch.from_numpy(leaf.numpy())


def _read(rows: Tree) -> _Source:
    """The store's arrays, copied into TensorFlow's memory; no memory map stays in use."""
    arrays, structure = optree.tree_flatten(rows)
    if not all(isinstance(array, np.ndarray) for array in arrays):
        raise Unsupported("loader=tf_data reads arrays only: use store@loader.store=npy")
    return _Source(_tensorflow(), arrays, structure)


def _tensorflow() -> Any:
    """TensorFlow's module, with no log output, and no GPU, of which it would take all memory."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # TensorFlow announces oneDNN before the log level takes effect. Nothing here uses oneDNN.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Triton, which torch.compile imports, crashes if its library is loaded after TensorFlow's.
    with suppress(ImportError):
        import_module("triton")
    tf = LIBRARY.load()
    tf.get_logger().setLevel("ERROR")
    tf.config.set_visible_devices([], "GPU")
    return tf
