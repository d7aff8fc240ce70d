"""Guesses by a smaller model: its runner, its cache, and how it comes up beside the model that checks them.

`backend.engine.engine` may import it.
"""
