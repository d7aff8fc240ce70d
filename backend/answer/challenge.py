"""A challenge: do the states that an answer commits to come out again, from its client's own text and these weights?

The prompt is rendered as the server renders it, the text is read as tokens, and one prefill computes the states that
the tokens were drawn from. Digests in the commitment say whether prompt and tokens are those of the call; only where
they are does a distance say anything about the model.
"""

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import torch
from pydantic import ValidationError

from backend.activations.commitment import (
    SCHEME,
    Commitment,
    Distance,
    Malformed,
    digest_of,
    distance,
)
from backend.activations.rows import CHUNK
from backend.activations.tokens import Spelling
from backend.activations.verdict import limits_of, verdict_of
from backend.answer.weights import measure
from backend.chat.conversation import ChatModel
from backend.chat.parameters import completion_prompts
from backend.engine.cpu.prefill import rows_behind
from backend.errors import InvalidRequest
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from backend.wire import (
    Challenged,
    ChallengedPart,
    ChallengeRequest,
    ChallengeVerdict,
    ChatCompletionRequest,
    CompletionRequest,
)


def challenge(path: Path, asked: ChallengeRequest, dtype: str) -> Challenged:
    """Compare by the weights at `path`, computed in float32 on the CPU, by the limits for a backend that computes in
    `dtype`.

    Raises InvalidRequest for a body or commitment that cannot be read, ModelError and ConfigError for the weights.
    """
    checkpoint = Checkpoint(path)
    text, commitment = checkpoint.text, _commitment(asked)
    prompt = prompt_of(text, asked)
    if digest_of(prompt) != commitment.prompt:
        return _result(path, asked, commitment, dtype, "other_prompt", [], respelled=False)
    tokens, known, respelled = _answer(text, asked.text, commitment)
    distances: list[Distance] = []
    if known:
        model = load_model(checkpoint, "float32")
        if model.config.hidden_size == commitment.width:
            distances = compared(model, commitment, prompt, tokens, known)
        else:
            return _result(path, asked, commitment, dtype, "other_model", [], respelled=respelled)
    verdict = _verdict(
        dtype, distances, whole=known == len(commitment.chunks), short=len(tokens) < commitment.tokens - 1
    )
    return _result(path, asked, commitment, dtype, verdict, distances, respelled=respelled)


@torch.inference_mode()
def compared(
    model: Decoder, commitment: Commitment, prompt: Sequence[int], tokens: Sequence[int], known: int
) -> list[Distance]:
    """The distance of each of the first `known` chunks."""
    chunks = commitment.chunks[:known]
    rows = rows_behind(model, prompt, tokens, sum(chunk.rows for chunk in chunks))
    return [
        distance(chunk, rows[at * CHUNK : at * CHUNK + chunk.rows], commitment.width) for at, chunk in enumerate(chunks)
    ]


def prompt_of(text: TextModel, asked: ChallengeRequest) -> list[int]:
    """The prompt's tokens, as the server makes them of the body that it got."""
    if asked.at is not None:
        for template in (text.chat_template, text.tool_template):
            if template is not None:  # one that writes today's date wrote the date of the call
                template.at = datetime.fromtimestamp(asked.at / 1000, UTC)
    try:
        if asked.path == "/v1/chat/completions":
            return ChatModel(text).turn(ChatCompletionRequest.model_validate_json(asked.body)).prompt
        request = CompletionRequest.model_validate_json(asked.body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the body"
        raise InvalidRequest(
            f"{where} of the prompt is not as a request has it; give the body of the request"
        ) from None
    prompts = completion_prompts(request)
    number = 0 if len(prompts) == 1 else asked.choice // max(1, request.n or 1)
    if number >= len(prompts):
        raise InvalidRequest(f"the request has {len(prompts)} prompts; give a choice that it has")
    chosen = prompts[number]
    if not isinstance(chosen, str):
        return chosen
    return text.encode_completion(chosen, add_special_tokens=request.add_special_tokens is not False)


def _commitment(asked: ChallengeRequest) -> Commitment:
    try:
        return Commitment.from_bytes(urlsafe_b64decode(asked.commitment + "=" * (-len(asked.commitment) % 4)))
    except Malformed as error:
        raise InvalidRequest(str(error)) from None
    except ValueError:
        raise InvalidRequest("the commitment is not base64url; read it again from its record") from None


def _answer(text: TextModel, said: str, commitment: Commitment) -> tuple[list[int], int, bool]:
    """Tokens of the text, how many chunks are of them, and whether they are other than the tokenizer's. A file may end
    with a line break that the answer does not have."""
    spelling = Spelling(text.token_bytes)
    best: tuple[list[int], int, bool] = [], 0, False
    for candidate in dict.fromkeys((said, said.removesuffix("\n"), said.strip())):
        plain = text.encode_words(candidate)
        tokens, known = spelling.recovered(plain, commitment.chunks)
        if known > best[1] or not best[0]:
            best = tokens, known, tokens != plain
        if known == len(commitment.chunks):
            break
    return best


def _verdict(dtype: str, distances: list[Distance], *, whole: bool, short: bool) -> ChallengeVerdict:
    """whole: all of the answer's tokens are known. short: the text ends before the answer does."""
    if not distances:
        return "not_compared" if short and not whole else "other_text"
    found = verdict_of(dtype, fmean(one.steps for one in distances))
    return found if found != "matched" or whole or short else "other_text"


def _result(
    path: Path, asked: ChallengeRequest, commitment: Commitment, dtype: str, verdict: ChallengeVerdict,
    distances: list[Distance], *, respelled: bool,
) -> Challenged:  # fmt: skip
    parts = []
    rest: ChallengeVerdict = verdict if verdict in ("other_prompt", "other_text") else "not_compared"
    for at, chunk in enumerate(commitment.chunks):
        place = {"first": at * CHUNK + 1, "last": at * CHUNK + chunk.rows}
        if at < len(distances):
            one = distances[at]
            parts.append(
                ChallengedPart(
                    **place, verdict=verdict_of(dtype, one.steps), values=one.values, exponents=one.exponents,
                    mean=one.mean, median=one.median, steps=one.steps,
                )
            )  # fmt: skip
        else:
            parts.append(ChallengedPart(**place, verdict=rest))
    return Challenged(
        verdict=verdict,
        scheme=SCHEME,
        tokens=commitment.tokens,
        compared=sum(chunk.rows for chunk in commitment.chunks[: len(distances)]),
        steps=fmean(one.steps for one in distances) if distances else None,
        limits=limits_of(dtype),
        dtype=dtype,
        weights_sha256=measure(path).sha256,
        respelled=respelled,
        parts=tuple(parts),
    )
