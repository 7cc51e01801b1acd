"""Datasets and a loop to record timelines of, in a module with few imports."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    """As many samples from each worker as its length says, each the worker's number."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        info = get_worker_info()
        number = info.id if info else 0
        return (torch.tensor(number) for _ in range(self.lengths[number]))


class Split:
    """Samples with a transform that the probe tells apart from reading."""

    def __init__(self, probe):
        self.transform = probe.wrap_transform(torch.neg)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return self.transform(torch.tensor(index))


def collect_epoch(loader, probe):
    """Yield the batches of an epoch of the loader, with the events of the probe and of the loop."""
    from fastloop.observe.job_probe import watch_epoch

    with _insert_probe(loader, probe), probe.watch_loaders():
        yield from watch_epoch(loader, probe.log)


@contextmanager
def _insert_probe(loader, probe):
    """A context that probes each epoch of the DataLoader that begins in it.

    The loader has its own dataset and collate_fn again afterwards.
    """
    original = {name: loader.__dict__[name] for name in ("dataset", "collate_fn")}
    dataset = probe.wrap_dataset(loader.dataset)
    # DataLoader's __setattr__ refuses a new dataset; its iterators read the attribute as usual.
    loader.__dict__.update(dataset=dataset, collate_fn=probe.wrap_collate(loader.collate_fn))
    try:
        yield
    finally:
        loader.__dict__.update(original)
