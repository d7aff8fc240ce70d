"""Triton kernels of the engine, each with a torch twin in `reference`.

`interface.kernels_for(device)` gives the set for a device: Triton on CUDA, the twins elsewhere. Nothing here knows of
sequences, schedulers or models: tensors in, tensors out.

`backend.engine`, `backend.models`, `backend.parallel` and `backend.quantization` may import it.
"""
