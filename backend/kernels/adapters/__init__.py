"""Kernels for low-rank adapters (LoRA): add to each row of a product the product of its own adapter, if it has one.

`backend.kernels` has the layers above; `backend.models.adapters` may import it.
"""
