"""What the surroundings of a number say it is: a figure, an invoice, a cell of a named column.

`policy.redact.contacts`, `policy.redact.payment` and `policy.redact.detectors` may import it.
"""
