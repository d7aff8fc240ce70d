"""LiteLLM's proxy as a peer of the bench: one worker, one model, a master key, no database, no callbacks.

It runs in an environment of its own (`make build/litellm/.installed`), since its pins are not ours.
"""

from pathlib import Path

MODEL = "mock"
KEY = "sk-litellm"
QUIET = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it a table of prices is fetched at the start
    "LITELLM_TELEMETRY": "False",
    "LITELLM_MASTER_KEY": KEY,
}


def write_config(folder: Path, upstream: str) -> Path:
    """Its configuration for the model `mock` at `upstream`, a base URL without ``/v1``."""
    path = folder / "litellm.yaml"
    path.write_text(
        f"model_list:\n"
        f"  - model_name: {MODEL}\n"
        f"    litellm_params: {{model: openai/{MODEL}, api_base: '{upstream}/v1', api_key: sk-mock}}\n"
        f"general_settings: {{master_key: {KEY}}}\n"
        f"litellm_settings: {{telemetry: false}}\n",
        encoding="utf-8",
    )
    return path


def command(environment: Path, config: Path, port: int) -> tuple[str, ...]:
    """What starts it. Raises SystemExit, with what to do, where it is not installed at `environment`."""
    program = environment.resolve() / "bin" / "litellm"
    if not program.exists():
        raise SystemExit(f"LiteLLM is not installed in {environment}; run `make build/litellm/.installed`")
    return (str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")


def installed_version(environment: Path) -> str | None:
    """As its metadata says; None where it is not installed."""
    found = sorted(environment.glob("lib/python*/site-packages/litellm-*.dist-info"))
    return found[0].name.removeprefix("litellm-").removesuffix(".dist-info") if found else None
