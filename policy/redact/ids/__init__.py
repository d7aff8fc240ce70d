"""National identification numbers: kinds, check digits and names, one data file a country.

`policy.redact.contacts`, `policy.redact.payment` and `policy.redact.detectors` may import it.
"""
