"""The set of Triton kernels for latent attention; their torch twins are in `reference`."""

from backend.kernels.latent.attention import latent_attention, latent_decode
from backend.kernels.latent.products import per_head_linear
from backend.kernels.latent.rotary import latent_rotary

__all__ = ["latent_attention", "latent_decode", "latent_rotary", "per_head_linear"]
