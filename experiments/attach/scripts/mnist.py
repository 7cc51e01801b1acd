"""A convolutional network on digits in MNIST's format."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.conv2(torch.relu(self.conv1(x))).relu()
        x = self.dropout(nn.functional.max_pool2d(x, 2)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    torch.manual_seed(1)
    train_set = datasets.MNIST("data", train=True, transform=transform)
    test_set = datasets.MNIST("data", train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=500)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters())
    seconds = 0.0
    for epoch in range(2):
        model.train()
        began = time.time()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
        seconds += time.time() - began
        model.eval()
        correct = 0
        with torch.no_grad():
            for data, target in test_loader:
                correct += (model(data).argmax(1) == target).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {correct / len(test_set):.1%} right")
    print(f"trained for {seconds:.3f} s")


if __name__ == "__main__":
    main()
