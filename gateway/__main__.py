"""``python -m gateway`` is ``domicile``."""

from gateway.cli.app import main

main()
