"""``domicile demo``: a whole installation on one machine, and a check that tries everything it promises.

`gateway.cli` may import it.
"""
