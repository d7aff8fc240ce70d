"""Evidence that a backend gives of itself, verified: signatures of its weights, and reports of its hardware.

`gateway` may import it. Nothing here does I/O: chains, lists and times are arguments.
"""
