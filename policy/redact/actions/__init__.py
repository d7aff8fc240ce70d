"""Actions on findings: redaction plans, placeholders and their restoration.

The modules of `policy.redact` may import it.
"""
