"""Redaction: finds personal data and secrets in requests and answers, replaces them, and restores pseudonyms.

`policy` and `gateway` may import it.
"""

ENGINE_VERSION = "7"
"""Engine version in every record; raised when the same text and plan may give a different result."""
