"""National identification numbers: kinds, check digits and names, with one data file per country.

`policy.redact.contacts`, `policy.redact.payment` and `policy.redact.detectors` may import it.
"""
