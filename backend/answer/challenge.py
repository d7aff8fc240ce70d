"""A challenge: activations computed from the client's text and these weights, against an answer's commitment.

The prompt is rendered as the server renders it, and the text is read as tokens. Digests in the commitment say whether
both are those of the call; only where they are does a distance say anything about the model. The states are
computed elsewhere: by `backend.cli.challenge` on the CPU, by `backend.answer.recomputation` in a running engine.
"""

from base64 import urlsafe_b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from pydantic import ValidationError

from backend.activations.answer_commitment import (
    SCHEME,
    Commitment,
    Distance,
    Malformed,
    digest_of,
    distance,
)
from backend.activations.largest_activations import CHUNK, Words
from backend.activations.tokens import Spelling
from backend.activations.verdict import limits_of, verdict_of
from backend.chat.conversation import ChatModel
from backend.chat.parameters import completion_prompts
from backend.errors import InvalidRequest
from backend.models.checkpoints.chat_template import READ_TIME
from backend.models.checkpoints.tokenizer import TextModel
from backend.wire import (
    Challenged,
    ChallengedPart,
    ChallengeRequest,
    ChallengeVerdict,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)

MOST_CUT = 4096
"""Tokens that are tried to be missing at a prompt's beginning."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What was asked, in tokens.

    Attributes:
        prompt, tokens: of the call, and of its answer as far as the text shows.
        known: chunks of the commitment whose tokens the text has.
        same_prompt: by its digest. respelled: the tokens are other than those that the tokenizer reads.
    """

    commitment: Commitment
    prompt: list[int]
    tokens: list[int]
    known: int
    same_prompt: bool
    respelled: bool

    @property
    def rows(self) -> int:
        """States to compute: those behind the prompt and behind each of as many tokens but the last; 0 if what was
        given is not the call's."""
        return sum(chunk.rows for chunk in self.commitment.chunks[: self.known]) if self.same_prompt else 0

    def found(self, rows: Sequence[Words], *, width: int, dtype: str, weights_sha256: str) -> Challenged:
        """What comes of it. rows: `rows` of them, of states of `width`. dtype: that the answer's backend computes in.
        weights_sha256: of the weights that computed the rows."""
        chunks = self.commitment.chunks[: self.known] if rows and width == self.commitment.width else ()
        distances = [
            distance(chunk, rows[at * CHUNK : at * CHUNK + chunk.rows], width) for at, chunk in enumerate(chunks)
        ]
        verdict = self._verdict(dtype, distances, other_width=bool(rows) and width != self.commitment.width)
        return Challenged(
            verdict=verdict,
            scheme=SCHEME,
            tokens=self.commitment.tokens,
            compared=sum(chunk.rows for chunk in chunks),
            steps=fmean(one.steps for one in distances) if distances else None,
            limits=limits_of(dtype),
            dtype=dtype,
            weights_sha256=weights_sha256,
            respelled=self.respelled,
            parts=self._parts(dtype, verdict, distances),
        )

    def _verdict(self, dtype: str, distances: list[Distance], *, other_width: bool) -> ChallengeVerdict:
        if not self.same_prompt:
            return "other_prompt"
        if other_width:
            return "other_model"
        whole = self.known == len(self.commitment.chunks)
        short = len(self.tokens) < self.commitment.tokens - 1  # the text ends before the answer does
        if not distances:
            return "not_compared" if short and not whole else "other_text"
        found = verdict_of(dtype, fmean(one.steps for one in distances))
        return found if found != "matched" or whole or short else "other_text"

    def _parts(self, dtype: str, verdict: ChallengeVerdict, distances: list[Distance]) -> tuple[ChallengedPart, ...]:
        parts = []
        rest: ChallengeVerdict = verdict if verdict in ("other_prompt", "other_text") else "not_compared"
        for at, chunk in enumerate(self.commitment.chunks):
            place = {"first": at * CHUNK + 1, "last": at * CHUNK + chunk.rows}
            if at < len(distances):
                one = distances[at]
                parts.append(
                    ChallengedPart(
                        **place,
                        verdict=verdict_of(dtype, one.steps),
                        values=one.values,
                        exponents=one.exponents,
                        mean=one.mean,
                        median=one.median,
                        steps=one.steps,
                    )
                )
            else:
                parts.append(ChallengedPart(**place, verdict=rest))
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of the call. prompt: its tokens, before they are cut. before: the text that an answer begins with.
    stops: strings that end it and that the client did not get."""

    prompt: list[int]
    cut: int | None
    before: str
    stops: tuple[str, ...]


def read_challenge(text: TextModel, asked: ChallengeRequest) -> Challenge:
    """Return the challenge in tokens of this model.

    Raises InvalidRequest for a body or commitment that cannot be read, and for a prompt that was cut to what the
    context had room for, where its tokens cannot be told.
    """
    commitment, request = _commitment(asked), request_of(text, asked)
    prompt = _cut(request, commitment.prompt)
    if prompt is None:
        return Challenge(commitment, request.prompt, [], 0, same_prompt=False, respelled=False)
    tokens, known, respelled = _answer(text, asked.text, request, commitment)
    return Challenge(commitment, prompt, tokens, known, same_prompt=True, respelled=respelled)


def _cut(request: Asked, digest: bytes) -> list[int] | None:
    """The prompt whose digest that is, None if none is. With `truncate_prompt_tokens` of -1 any end of it may be."""
    prompt, cut = request.prompt, request.cut
    if cut != -1:
        prompt = prompt if cut is None else prompt[-cut:]
        return prompt if digest_of(prompt) == digest else None
    found = next((prompt[at:] for at in range(min(len(prompt), MOST_CUT)) if digest_of(prompt[at:]) == digest), None)
    if found is None:
        raise InvalidRequest(
            "the prompt was cut to what the context had room for (truncate_prompt_tokens is -1), and no end of this one"
            " is it; give the prompt as it was sent, or challenge a call without truncation"
        )
    return found


def request_of(text: TextModel, asked: ChallengeRequest) -> Asked:
    """The request as the server reads the body that it got."""
    at = None if asked.at is None else datetime.fromtimestamp(asked.at / 1000, UTC)
    token = READ_TIME.set(at)  # a template that writes today's date wrote the date of the call
    try:
        if asked.path == "/v1/chat/completions":
            chat = ChatCompletionRequest.model_validate_json(asked.body)
            return Asked(ChatModel(text).turn(chat).prompt, chat.truncate_prompt_tokens, "", _stops(chat))
        request = CompletionRequest.model_validate_json(asked.body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the body"
        raise InvalidRequest(
            f"{where} of the prompt is not as a request has it; give the body of the request"
        ) from None
    finally:
        READ_TIME.reset(token)
    prompts = completion_prompts(request)
    number = 0 if len(prompts) == 1 else asked.choice // max(1, request.n or 1)
    if number >= len(prompts):
        raise InvalidRequest(f"the request has {len(prompts)} prompts; give a choice that it has")
    chosen = prompts[number]
    prompt = (
        chosen
        if not isinstance(chosen, str)
        else text.encode_completion(chosen, add_special_tokens=request.add_special_tokens is not False)
    )
    cut = request.truncate_prompt_tokens
    before = text.decode(prompt if cut is None or cut < 1 else prompt[-cut:]) if request.echo else ""
    return Asked(prompt, cut, before, _stops(request))


def _stops(request: GenerationRequest) -> tuple[str, ...]:
    if request.include_stop_str_in_output or not request.stop:
        return ()
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def _commitment(asked: ChallengeRequest) -> Commitment:
    try:
        return Commitment.from_bytes(urlsafe_b64decode(asked.commitment + "=" * (-len(asked.commitment) % 4)))
    except Malformed as error:
        raise InvalidRequest(str(error)) from None
    except ValueError:
        raise InvalidRequest("the commitment is not base64url; read it again from its record") from None


def _answer(text: TextModel, said: str, request: Asked, commitment: Commitment) -> tuple[list[int], int, bool]:
    """Tokens of the text, how many chunks are of them, and whether they are other than the tokenizer's. A file may end
    with a line break that the answer does not have; a stop string was drawn and not given."""
    spelling = Spelling(text.token_bytes)
    best: tuple[list[int], int, bool] = [], 0, False
    said = said.removeprefix(request.before)
    plain_texts = (said, said.removesuffix("\n"), said.strip())
    for candidate in dict.fromkeys((*plain_texts, *(each + stop for stop in request.stops for each in plain_texts))):
        plain = text.encode_words(candidate)
        tokens, known = spelling.recovered(plain, commitment.chunks)
        if known > best[1] or not best[0]:
            best = tokens, known, tokens != plain
        if known == len(commitment.chunks):
            break
    return best
