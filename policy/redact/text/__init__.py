"""A text as a detector reads it, with the way back to what was written.

Everything in `policy.redact` may import it.
"""
