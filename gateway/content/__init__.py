"""Content of a call: inspection, redaction, search for names, and retention where the policy allows it.

`gateway.request`, `gateway.comparisons` and `gateway.server` may import it.
"""
