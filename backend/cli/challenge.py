"""A challenge without a running backend, for `domicile audit challenge`: by the weights of a folder, on this host."""

from pathlib import Path


def challenged_by(weights: Path, body: bytes, dtype: str) -> bytes:
    """What comes of a `ChallengeRequest` by these weights: a `Challenged`. Loads the model, if there is anything to
    compare, and computes one prefill in float32 on the CPU. dtype: that the answer's backend computes in.

    Raises ModelError, ConfigError or InvalidRequest.
    """
    import torch

    from backend.activations.largest_activations import Words
    from backend.answer.challenge import read_challenge
    from backend.answer.weights import measure
    from backend.engine.cpu.prefill import rows_behind
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.models.loader import load_model
    from backend.wire import ChallengeRequest

    path = resolve(str(weights))
    checkpoint = Checkpoint(path)
    challenge = read_challenge(checkpoint.text, ChallengeRequest.model_validate_json(body))
    rows: list[Words] = []
    width = challenge.commitment.width
    if challenge.rows:
        model = load_model(checkpoint, "float32")
        width = model.config.hidden_size
        with torch.inference_mode():
            rows = rows_behind(model, challenge.prompt, challenge.tokens, challenge.rows)
    found = challenge.found(rows, width=width, dtype=dtype, weights_sha256=measure(path).sha256)
    return found.model_dump_json().encode()
