"""An autoencoder of digits, trained by Lightning."""

import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 784))

    def training_step(self, batch):
        x = batch[0].flatten(1)
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
        return DataLoader(dataset, batch_size=64, shuffle=True)


def main():
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    began = time.time()
    trainer.fit(Autoencoder())
    print(f"trained for {time.time() - began:.3f} s")


if __name__ == "__main__":
    main()
