"""A variational autoencoder of digits."""

import time

import torch
from torch import nn
from torchvision import datasets, transforms

torch.manual_seed(1)
train_loader = torch.utils.data.DataLoader(
    datasets.MNIST("data", train=True, transform=transforms.ToTensor()),
    batch_size=128,
    shuffle=True,
)
test_loader = torch.utils.data.DataLoader(
    datasets.MNIST("data", train=False, transform=transforms.ToTensor()),
    batch_size=128,
    shuffle=False,
)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(784, 200)
        self.mean, self.log_variance = nn.Linear(200, 20), nn.Linear(200, 20)
        self.decoder = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 784))

    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(drawn), mean, log_variance


def loss_function(x, decoded, mean, log_variance):
    likelihood = nn.functional.binary_cross_entropy_with_logits(decoded, x, reduction="sum")
    return likelihood - 0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
seconds = 0.0
for epoch in range(8):
    began = time.time()
    for data, _ in train_loader:
        x = data.flatten(1)
        loss = loss_function(x, *model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds += time.time() - began
    with torch.no_grad():
        total = sum(
            loss_function(x, *model(x)).item() for x in (d.flatten(1) for d, _ in test_loader)
        )
    print(f"epoch {epoch}: test loss {total / len(test_loader.dataset):.2f}")
print(f"trained for {seconds:.3f} s")
