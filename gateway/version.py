"""Version and build of the program, for the record and for ``domicile --version``."""

from importlib.metadata import PackageNotFoundError, version


def build() -> str:
    """Name and version, as the record names them."""
    try:
        return f"domicile {version('domicile')}"
    except PackageNotFoundError:
        return "domicile (not installed)"
