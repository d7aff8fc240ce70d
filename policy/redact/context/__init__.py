"""Context of a number: whether it is a figure, an invoice number or a cell of a named column.

`policy.redact.contacts`, `policy.redact.payment` and `policy.redact.detectors` may import it.
"""
