"""A challenge without a running backend, for `domicile audit challenge`: by the weights of a folder, on this host."""

from pathlib import Path


def challenged_by(weights: Path, body: bytes, dtype: str) -> bytes:
    """What comes of a `ChallengeRequest` by these weights: a `Challenged`. Loads the model and computes one prefill.

    Raises ModelError, ConfigError or InvalidRequest.
    """
    from backend.answer.challenge import challenge
    from backend.models.checkpoints.checkpoint import resolve
    from backend.wire import ChallengeRequest

    asked = ChallengeRequest.model_validate_json(body)
    return challenge(resolve(str(weights)), asked, dtype).model_dump_json().encode()
