"""Files written whole, opened within bounds and with the right mode: secrets, databases, files of others.

Every package of `audit`, `gateway` and `regions` may import it.
"""
