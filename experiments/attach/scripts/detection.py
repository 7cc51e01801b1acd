"""A detector of boxes: images with a list of boxes each, flipped at random."""

import csv
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __init__(self, root):
        self.root = root
        self.boxes = {}
        with open(os.path.join(root, "boxes.csv"), newline="") as file:
            for name, *box in csv.reader(file):
                self.boxes.setdefault(name, []).append([float(each) for each in box])
        self.names = sorted(self.boxes)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        name = self.names[index]
        image = Image.open(os.path.join(self.root, name)).convert("RGB")
        boxes = torch.tensor(self.boxes[name])
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
            boxes = torch.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], 1)
        return pixels, {"boxes": boxes, "image_id": index}


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


def main():
    torch.manual_seed(0)
    data_loader = DataLoader(
        Boxes("data/photos/boxes"), batch_size=4, shuffle=True, num_workers=0, collate_fn=collate_fn
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    seconds = 0.0
    for epoch in range(3):
        began = time.time()
        for images, targets in data_loader:
            first = torch.stack([target["boxes"][0] for target in targets])
            loss = nn.functional.smooth_l1_loss(model(torch.stack(images)), first)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds += time.time() - began
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"trained for {seconds:.3f} s")


if __name__ == "__main__":
    main()
