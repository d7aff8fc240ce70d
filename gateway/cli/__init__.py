"""The command `domicile`: one module a group of commands, imported when it runs.

Nothing imports it.
"""
