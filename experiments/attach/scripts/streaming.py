"""Records of shards that a server delivers, one after the other, with a delay for each."""

import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

DELAY_S = 0.002


class Shards(IterableDataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.jsonl"))

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for path in self.paths[first::step]:
            with path.open() as file:
                for line in file:
                    time.sleep(DELAY_S)
                    record = json.loads(line)
                    yield torch.tensor(record["pixels"], dtype=torch.float32), record["digit"]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Shards("data/shards"), batch_size=16, num_workers=1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.time()
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"trained for {time.time() - began:.3f} s")


if __name__ == "__main__":
    main()
