"""A network trained on a folder of photographs with random crops, as is usual for ImageNet."""

import argparse
import time

import torch
import torchvision
from torch import nn
from torchvision import transforms

parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default="data/photos")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int)

normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])


def train(train_loader, model, criterion, optimizer):
    model.train()
    total = 0.0
    for images, target in train_loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(train_loader)


def validate(val_loader, model):
    model.eval()
    correct = count = 0
    with torch.no_grad():
        for images, target in val_loader:
            correct += (model(images).argmax(1) == target).sum().item()
            count += len(target)
    return correct / count


def main():
    args = parser.parse_args()
    torch.manual_seed(0)
    train_dataset = torchvision.datasets.ImageFolder(
        f"{args.data}/train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(96),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    val_dataset = torchvision.datasets.ImageFolder(
        f"{args.data}/val",
        transforms.Compose(
            [
                transforms.Resize(110),
                transforms.CenterCrop(96),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
    )
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers
    )
    model = torchvision.models.shufflenet_v2_x0_5(num_classes=2)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    seconds = 0.0
    for epoch in range(args.epochs):
        began = time.time()
        loss = train(train_loader, model, criterion, optimizer)
        seconds += time.time() - began
        print(f"epoch {epoch}: loss {loss:.4f}, {validate(val_loader, model):.1%} right")
    print(f"trained for {seconds:.3f} s")


if __name__ == "__main__":
    main()
