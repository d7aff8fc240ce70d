"""``python -m gateway`` is ``domicile``."""

from gateway.cli import main

main()
