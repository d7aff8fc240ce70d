"""Phone numbers, host addresses, and table rows that describe one person.

`policy.redact.payment` and `policy.redact.detectors` may import it.
"""
