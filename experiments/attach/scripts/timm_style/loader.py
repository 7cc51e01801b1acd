"""Loaders of images as bytes, which are normalised a batch at a time."""

import numpy as np
import torch
from torch.utils.data import DataLoader

MEAN = torch.tensor([123.7, 116.3, 103.5]).view(1, 3, 1, 1)
STD = torch.tensor([58.4, 57.1, 57.4]).view(1, 3, 1, 1)


def fast_collate(batch):
    images = torch.zeros((len(batch), *batch[0][0].shape), dtype=torch.uint8)
    for place, (image, _) in enumerate(batch):
        images[place] += torch.from_numpy(image)
    return images, torch.tensor([target for _, target in batch])


def to_numpy(image):
    return np.moveaxis(np.array(image, dtype=np.uint8), 2, 0).copy()


class Normalized:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for images, targets in self.loader:
            yield images.float().sub_(MEAN).div_(STD), targets

    def __len__(self):
        return len(self.loader)


def create_loader(dataset, batch_size, is_training=False, num_workers=1, collate_fn=fast_collate):
    loader_args = {
        "batch_size": batch_size,
        "shuffle": is_training,
        "num_workers": num_workers,
        "collate_fn": collate_fn,
        "drop_last": is_training,
    }
    loader = DataLoader(dataset, **loader_args)
    return Normalized(loader)
