"""A script for torchrun: DistributedDataParallel, where the samples of rank 1 take longer."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __init__(self, sleep_s):
        self.sleep_s = sleep_s

    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(self.sleep_s)
        return torch.tensor([float(index)])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    dataset = Numbers(0.01 if dist.get_rank() == 1 else 0.0)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            model(batch).sum().backward()
    if dist.get_rank() == 0:
        print("trained")
    # A thread of gloo that still has to release the last step's objects when Python ends aborts the
    # process ("terminate called without an active exception"), with and without attach.
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()
