"""The usual script that trains a network of torchvision on an image folder, and validates it."""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

parser = argparse.ArgumentParser()
parser.add_argument("data", help="a folder with train/ and val/")
parser.add_argument("-a", "--arch", default="resnet18")
parser.add_argument("-j", "--workers", type=int, default=2)
parser.add_argument("-b", "--batch-size", type=int, default=4)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=0)


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def average(self):
        return self.total / self.count


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    val_dataset = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    settings = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_dataset, shuffle=True, **settings)
    val_loader = DataLoader(val_dataset, shuffle=False, **settings)

    model = models.__dict__[args.arch](num_classes=len(train_dataset.classes)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)

    validate(val_loader, model, criterion, device)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device)
        validate(val_loader, model, criterion, device)
        scheduler.step()


def train(train_loader, model, criterion, optimizer, epoch, device):
    model.train()
    for i, (images, target) in enumerate(train_loader):
        output = model(images.to(device, non_blocking=True))
        loss = criterion(output, target.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i + 1}/{len(train_loader)}]\tLoss {loss.item():.4e}")


def validate(val_loader, model, criterion, device):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output, expected = model(images.to(device)), target.to(device)
            losses.update(criterion(output, expected).item(), images.size(0))
            top1.update((output.argmax(1) == expected).float().mean().item(), images.size(0))
    print(f" * Acc@1 {top1.average:.3f} Loss {losses.average:.6f}")


if __name__ == "__main__":
    main()
