"""A step on a GPU: CUDA graphs, device tables, copies in both directions, memory that can be given back.

`backend.engine.engine` and `backend.engine.embedding` may import it.
"""
