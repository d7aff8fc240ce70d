"""Commands for marks of answers: watermarks, manifests, and the search for an answer by its text.

Only `gateway.cli.app` may import it.
"""
