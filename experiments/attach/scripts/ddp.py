"""Training in several processes that torchrun starts."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = ImageFolder(
        "data/photos/train",
        transforms.Compose([transforms.RandomResizedCrop(112), transforms.ToTensor()]),
    )
    sampler = DistributedSampler(dataset)
    train_loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 2)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = 0.0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        began = time.time()
        for images, targets in train_loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds += time.time() - began
    if distributed.get_rank() == 0:
        print(f"trained for {seconds:.3f} s")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
