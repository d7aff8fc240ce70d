"""Kernels for mixtures of experts: routing, blocks of tokens by expert, and products of these blocks.

`backend.quantization` and `backend.models` may import it.
"""
