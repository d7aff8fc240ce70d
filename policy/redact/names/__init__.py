"""Names of persons, from a token classifier and from the words around.

`policy.redact.redactor` and `gateway.content` may import it.
"""
