"""Places and who operates them, as dated facts, and how a policy sees each.

`regions.cli` and `gateway` may import it.
"""
