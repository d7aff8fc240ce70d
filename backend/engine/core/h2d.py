"""Host-to-device copies through pinned memory."""

import torch
from torch import Tensor


def sent(values: list[int] | list[float] | list[list[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` as a tensor on the device, without waiting for copies in flight."""
    return pinned(torch.tensor(values, dtype=dtype), device)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` on the device, without waiting. On a GPU from pinned memory, which torch does not reuse before the
    copy is done; with other memory CUDA may wait for the device, or not (its API's synchronization behaviour)."""
    if device.type != "cuda":
        return host.to(device)
    return (host if host.is_pinned() else host.pin_memory()).to(device, non_blocking=True)
