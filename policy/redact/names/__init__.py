"""Detection of person names with a token classifier and context words.

`policy.redact.redactor` and `gateway.content` may import it.
"""
