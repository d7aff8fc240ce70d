"""The evaluation set of redaction: texts with known spans, made from templates, Faker and python-stdnum by a seed.

Values are random with valid check digits, no person's. Words, templates and seeds come in two halves: detectors are
worked on with the first, and figures are told of the second.
"""
