"""Decoders and encoders: the reference in plain torch, and those computed by kernels.

`backend.models.loader` and `backend.engine` may import it.
"""
