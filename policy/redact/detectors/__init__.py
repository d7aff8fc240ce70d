"""The list of all detectors, and those of secrets, devices, plates, dates of birth and national numbers.

The modules of `policy.redact` and `policy.redact.actions` may import it.
"""
