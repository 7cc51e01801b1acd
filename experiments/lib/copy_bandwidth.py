"""Host-to-device bandwidth of a bare copy, without a pipeline around it."""

import torch

from fastloop.trial.limits import bandwidth

COPY_BYTES = 64 << 20
DURATION_NS = 250_000_000


def pinned_copy_bandwidth(device: torch.device) -> float:
    """Bytes per second from pinned memory to the device; on a CPU, from memory to memory."""
    host = torch.ones(COPY_BYTES, dtype=torch.uint8)
    return _copy_bandwidth(host.pin_memory() if device.type == "cuda" else host, device)


def pageable_copy_bandwidth(device: torch.device) -> float:
    """Bytes per second from pageable memory to the device."""
    return _copy_bandwidth(torch.ones(COPY_BYTES, dtype=torch.uint8), device)


def _copy_bandwidth(host: torch.Tensor, device: torch.device) -> float:
    target = torch.empty_like(host, device=device)

    def copy() -> int:
        target.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, DURATION_NS)
