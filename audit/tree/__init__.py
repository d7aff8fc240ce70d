"""The Merkle tree, signed notes, checkpoints and cosignatures, as RFC 6962 and C2SP define them. Pure.

Every package of `audit` above `audit.events` may import it.
"""
