"""Attention over the paged cache, and what is done between the QKV projection and it.

`backend.kernels.fused`, `backend.kernels.interface` and `backend.kernels.reference` may import it.
"""
