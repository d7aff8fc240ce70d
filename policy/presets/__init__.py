"""Ready policies to start from, or to extend, each of which passes the tests it carries.

`policy.decision`, `regions.catalogue` and `gateway.cli` may import it.
"""

from functools import cache
from importlib.resources import files

from policy.document.document import PolicyDocument, load_document

PRESETS = ("eu-strict", "gdpr-standard", "health", "finance")


def preset_text(name: str) -> str:
    """The YAML of a preset. Raises KeyError for a name that is not in `PRESETS`."""
    if name not in PRESETS:
        raise KeyError(name)
    return files("policy.presets").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


@cache
def preset_document(name: str) -> PolicyDocument:
    """The same, read. Raises KeyError."""
    return load_document(preset_text(name))
