"""What a call says: inspected, redacted, names found, and kept only where the policy keeps content.

`gateway.request`, `gateway.evidence` and `gateway.server` may import it.
"""
