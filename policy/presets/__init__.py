"""Ready policies to start from. Each passes the tests it carries."""

from importlib.resources import files

PRESETS = ("eu-strict", "gdpr-standard")


def preset_text(name: str) -> str:
    """The YAML of a preset. Raises KeyError for a name that is not in `PRESETS`."""
    if name not in PRESETS:
        raise KeyError(name)
    return files("policy.presets").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
