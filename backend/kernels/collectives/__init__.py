"""Kernels that read what other cards of the host have written.

`backend.parallel` may import it.
"""
