"""Which backends there are, how they fare, and how many there should be: the fleet and its reconciler.

`regions.launchers`, `regions.routing` and `gateway` may import it.
"""
