"""The engine of models that make vectors.

`backend.process` may import it.
"""
