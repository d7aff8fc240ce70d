"""Numbers on their way from the host to the device."""

import torch
from torch import Tensor


def sent(values: list[int] | list[float] | list[list[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` as a tensor on the device, without waiting for what is on its way."""
    return pinned(torch.tensor(values, dtype=dtype), device)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` on the device, without waiting. On a GPU from pinned memory, which torch gives to nobody else before the
    copy is done; with other memory CUDA may wait for the device, or not (its API's synchronization behaviour)."""
    if device.type != "cuda":
        return host.to(device)
    return (host if host.is_pinned() else host.pin_memory()).to(device, non_blocking=True)
