"""Values that records commit to: the store that forgets them, deletion, erasure, and certificates of both.

`audit.witness` and everything above it may import it.
"""
