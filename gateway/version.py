"""Which program this is, for the record, and for whoever asks on the command line."""

from importlib.metadata import PackageNotFoundError, version


def build() -> str:
    """Name and version, as the record names them."""
    try:
        return f"domicile {version('domicile')}"
    except PackageNotFoundError:
        return "domicile (not installed)"
