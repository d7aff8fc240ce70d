"""Places, operators, backends, their identities, and the choice among them.

`gateway` may import it.
"""
