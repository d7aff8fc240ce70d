"""Text preparation for detectors: normalisation and decoding, with offsets into the original text.

Everything in `policy.redact` may import it.
"""
