import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.hugging_face import reference_llama
from tests.backend.parallel.crew import Crews
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes import quick_interpreter

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)  # two that wait for each other crawl on a busy machine, and xdist runs beside us
    yield


@pytest.fixture(scope="session", autouse=True)
def _interpreted_kernels_start_at_once() -> Iterator[None]:
    module = sys.modules.get("triton.runtime.interpreter")
    if module is None:  # no test of this run has kernels
        yield
        return
    with quick_interpreter.quick(module):
        yield


@pytest.fixture(scope="session")
def crews() -> Iterator[Crews]:
    """Groups of several processes, shared by all tests of a run."""
    found = Crews()
    yield found
    found.close()


@pytest.fixture(scope="session")
def model() -> Decoder:
    return tiny_model()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Decoder) -> Path:
    """The tiny model as a Hugging Face folder."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny", model)


@pytest.fixture(scope="session")
def smollm() -> Checkpoint:
    """The demonstration model. Fails, with the command that installs it, where it is not installed."""
    return Checkpoint(resolve("demo"))


@pytest.fixture(scope="session")
def smollm_decoder(smollm: Checkpoint) -> Decoder:
    return load_model(smollm, "float32")


@pytest.fixture(scope="session")
def smollm_reference(smollm: Checkpoint, smollm_decoder: Decoder) -> Any:
    """transformers' model of the same weights."""
    return reference_llama(smollm, smollm_decoder)
