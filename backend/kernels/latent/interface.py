"""Selection of the implementation of latent attention for a device."""

from typing import Any

import torch


def latent_kernels_for(device: torch.device) -> Any:
    """Return the Triton kernels on CUDA, and their torch twins elsewhere, where Triton need not be installed."""
    if device.type == "cuda":
        from backend.kernels.latent import fused

        return fused
    from backend.kernels.latent import reference

    return reference
