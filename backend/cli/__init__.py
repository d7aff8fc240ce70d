"""`domicile backend` and `domicile plan`.

`gateway.cli` imports it by the Typer apps in it; nothing else does.
"""
