"""The usual example of classifying photographs: a folder of files for each class, workers with a
seed of their own, a function that trains an epoch, another one that validates, and meters."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

CLASSES, PER_CLASS, SIZE = ("cat", "dog"), 24, 48


class Folder(Dataset):
    def __init__(self, root, transform):
        self.classes = sorted(path.name for path in root.iterdir())
        self.files = sorted(root.glob("*/*.jpg"))
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        return self.transform(image), self.classes.index(path.parent.name)


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, count=1):
        self.sum, self.count = self.sum + value * count, self.count + count

    @property
    def average(self):
        return self.sum / self.count


def write_photos(root):
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            pixels = rng.integers(256, size=(SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.jpg")


def augment(image):
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


def seed_worker(_):
    random.seed(torch.initial_seed() % 2**32)


def train(loader, model, optimizer):
    data_time, losses = AverageMeter(), AverageMeter()
    end = time.time()
    model.train()
    for images, target in loader:
        data_time.update(time.time() - end)
        loss = nn.functional.cross_entropy(model(images), target)
        losses.update(loss.item(), len(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.time()
    return losses.average


def validate(loader, model):
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            top1.update((model(images).argmax(1) == target).float().mean().item(), len(target))
    return top1.count


if __name__ == "__main__":
    root = Path(sys.argv[1])
    write_photos(root)
    torch.manual_seed(0)
    dataset = Folder(root, augment)
    settings = {"num_workers": int(sys.argv[2]), "worker_init_fn": seed_worker}
    training = DataLoader(dataset, 8, shuffle=True, drop_last=True, **settings)
    validation = DataLoader(Subset(dataset, range(16)), 16, **settings)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _epoch in range(2):
        train(training, model, optimizer)
        print(f"validated on {validate(validation, model)}")
