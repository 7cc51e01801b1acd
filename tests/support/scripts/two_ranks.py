"""A script for torchrun: each rank loads its share of the samples."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.tensor(index)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    dataset = Numbers()
    loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset))
    total = sum(batch.sum() for batch in loader)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(int(total), sys.argv[1:])
    dist.destroy_process_group()
