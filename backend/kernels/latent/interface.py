"""Who provides the operations of latent attention on a device."""

from typing import Any

import torch


def latent_kernels_for(device: torch.device) -> Any:
    """The Triton kernels on CUDA, their torch twins elsewhere (where Triton need not be installed)."""
    if device.type == "cuda":
        from backend.kernels.latent import fused

        return fused
    from backend.kernels.latent import reference

    return reference
