"""Payment cards, IBAN, BIC and VAT numbers.

`policy.redact.detectors` and `policy.redact.actions` may import it.
"""
