"""The test for a watermark without a running backend, for `domicile mark detect`: by the tokenizer of a folder."""

from collections.abc import Callable
from pathlib import Path

from backend.errors import BackendError as BackendError


def tester(weights: Path) -> Callable[[bytes], bytes]:
    """Return what POST /marks of a backend with these weights answers to a body. Loads the tokenizer alone.

    Raises ModelError where there is none; the test raises InvalidRequest.
    """
    from backend.answer.mark_report import tested
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.wire import MarksRequest

    text = Checkpoint(resolve(str(weights))).text

    def test(body: bytes) -> bytes:
        return tested(text.encode_words, MarksRequest.model_validate_json(body)).model_dump_json().encode()

    return test
