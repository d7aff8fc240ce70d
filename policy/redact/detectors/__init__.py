"""The set of all detectors, and those of secrets, devices, plates, births and national numbers.

The modules of `policy.redact` and `policy.redact.actions` may import it.
"""
