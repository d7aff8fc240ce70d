"""What proves the log from outside it: anchor, witnesses, timestamps, rotation of the signing key.

`audit.verification` and everything above it may import it.
"""
