"""Keys: the master key, the keys of owners, the key that signs checkpoints, and its succession.

`audit.storage` and everything above it may import it.
"""
