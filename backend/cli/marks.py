"""The test for a watermark without a running backend, for `domicile mark detect`: by the tokenizer of a folder."""

from collections.abc import Callable
from pathlib import Path

from backend.errors import BackendError as BackendError


def tested_by(weights: Path, body: bytes) -> bytes:
    """What POST /marks of a backend with these weights answers to `body`. Loads the tokenizer alone.

    Raises ModelError where there is none, InvalidRequest.
    """
    return tester(weights)(body)


def tester(weights: Path) -> Callable[[bytes], bytes]:
    """Return `tested_by` for many texts. Raises ModelError where there is no tokenizer."""
    from backend.answer.mark_report import tested
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.wire import MarksRequest

    text = Checkpoint(resolve(str(weights))).text

    def test(body: bytes) -> bytes:
        return tested(text.encode_words, MarksRequest.model_validate_json(body)).model_dump_json().encode()

    return test
