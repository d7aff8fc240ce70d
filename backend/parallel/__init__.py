"""Tensor parallelism: which part of a model a rank holds, and how ranks add up and gather what they computed.

`backend.models`, `backend.quantization`, `backend.engine` and `backend.process` may import it.
"""
