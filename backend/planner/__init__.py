"""What a model takes and gives on a card, by arithmetic, before anything is loaded.

`backend.cli` and `backend.engine` may import it.
"""
