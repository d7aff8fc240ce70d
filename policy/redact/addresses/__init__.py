"""Postal addresses, one grammar a country.

Only `policy.redact.detectors` may import it.
"""
