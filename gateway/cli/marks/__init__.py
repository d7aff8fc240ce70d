"""Commands on marks of answers: watermarks, and the search for an answer by its text.

Only `gateway.cli.app` may import it.
"""
