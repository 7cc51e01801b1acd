"""The steps of a loading pipeline, from a naive loop to samples that stay on the device."""

from experiments.lib.job_file import Settings

LOADING: Settings = {
    "dataset": "photos",
    "dataset.count": 400,
    "dataset.crop": [160, 160],
    "benchmark": "training",
    "batch_size": 32,
    "epochs": 3,
}
STEP: Settings = {"model.hidden": 32}
"""A training step that takes about as long as loading, so that hiding one behind the other
shows."""
AHEAD = 2


def ladder(device: str) -> dict[str, Settings]:
    """Name of a step of the ladder -> its settings, the first step first."""
    fast = {"loader": "raw", "decoder": "turbojpeg", "collate": "fast"}
    pinned = {"pin_memory": True, "placement.non_blocking": True}
    kept = pinned if device.startswith("cuda") else {}
    workers = {**fast, **kept, "num_workers": 2}
    ahead = {"device_prefetch": AHEAD}
    process: Settings = {"device_prefetch_by": "process"}
    if kept:
        process = {**process, "pinned_buffers": 4, "placement.non_blocking": True}
    return {
        "naive": {"loader": "raw", "decoder": "pil"},
        "faster decode": {"loader": "raw", "decoder": "turbojpeg"},
        "fast collate": fast,
        "pinned": {**fast, **pinned},
        "workers": workers,
        "prefetch in a process": {**fast, **ahead, **process},
        "prefetch in a thread": {**workers, **ahead},
        "prefetch by a stream": {**workers, **ahead, "device_prefetch_by": "stream"},
        "memmap, not decoded": {"loader": "np_memmap", **kept, **ahead},
        "device resident": {"loader": "device_resident"},
    }


def settings(device: str) -> dict[str, Settings]:
    """Name of a step of the ladder -> settings of its job."""
    return {name: {**LOADING, **STEP, **step} for name, step in ladder(device).items()}
