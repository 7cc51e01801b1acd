"""Peak memory of preparing a store, from a generated source of 4 GiB and from MyDataSet's npz file.

    python -m experiments.prepare_memory.run <folder> [npy|tensordict|mydataset]

Prints the peak resident memory of this process above its memory after importing torch and fastloop.
"""

import os
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from fastloop.data.prepare_dataset import prepare
from fastloop.options.dataset.mydataset import MyDataset
from fastloop.options.store.npy import NpyStore
from fastloop.options.store.tensordict import TensorDictStore

SHAPE = (3, 224, 224)
ROWS = 4 * 2**30 // (3 * 224 * 224)


@dataclass(frozen=True)
class GeneratedSamples:
    """Samples (uint8 (3, 224, 224), int), each made when it is requested; 4 GiB in all."""

    label: str = "generated"
    num_classes: int = 10
    uint8_scale: None = None

    def fetch(self) -> str:
        return "generated-4GiB"

    def open(self) -> "GeneratedSamples":
        return self

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= ROWS:
            raise IndexError(index)
        return torch.full(SHAPE, index % 251, dtype=torch.uint8), index % 10


def peak_mib() -> float:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(folder: str, source: str) -> None:
    os.environ["FASTLOOP_OUTPUTS"] = folder
    store = {"npy": NpyStore, "tensordict": TensorDictStore}.get(source, NpyStore)(
        root=str(Path(folder) / "s")
    )
    dataset = GeneratedSamples()
    if source == "mydataset":
        dataset = MyDataset(root=folder, count=60_000, shape=(28, 28))
        with ProcessPoolExecutor(1) as pool:
            pool.submit(dataset.fetch).result()
    torch.zeros(1).sum()
    before = peak_mib()
    prepared = prepare(dataset, store)
    print(
        f"{source}: {prepared.disk_mib:.0f} MiB in {prepared.seconds:.1f} s, "
        f"peak {peak_mib() - before:.0f} MiB above importing torch ({before:.0f} MiB)"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "npy")
