"""Training by a loader that a module of the same project makes."""

import time

import torch
from loader import create_loader, to_numpy
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    torch.manual_seed(42)
    dataset = ImageFolder(
        "data/photos/train",
        transforms.Compose([transforms.RandomResizedCrop(128), transforms.Lambda(to_numpy)]),
    )
    train_loader = create_loader(dataset, batch_size=16, is_training=True, num_workers=1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    seconds = 0.0
    for epoch in range(3):
        began = time.time()
        for images, targets in train_loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds += time.time() - began
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"trained for {seconds:.3f} s")


if __name__ == "__main__":
    main()
