"""The contract between gateway and backend: OpenAI's request and answer shapes, and a few names of our own.

Requests keep every field they came with (``extra="allow"``): an application may use parameters that a gateway older
than its backend has never heard of. Sources: OpenAI API reference (chat completions, completions, embeddings), vLLM's
extensions (``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``, ``stop_token_ids``, ``ignore_eos``,
``prompt_logprobs``, ``priority``, ``cache_salt``, ``guided_*``, ``structured_outputs``, ``bad_words``,
``allowed_token_ids``, ``truncate_prompt_tokens``, ``skip_special_tokens``, ``add_special_tokens``,
``add_generation_prompt``, ``continue_final_message``); ``deadline_s`` is ours.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from backend.sampling_parameters import field

REQUEST_ID_HEADER = "x-request-id"
PROJECT_HEADER = "x-domicile-project"  # for whom a call is, set by the gateway: projects share a backend fairly
REQUEST_TOKEN_HEADER = "x-domicile-token"  # noqa: S105  # its name
PREFILL_HEADER = "x-domicile-prefill"  # the token for the backend that computes the prompt, if the other names one
TRANSFER_METHOD, TRANSFER_PATH = "BLOCKS", "/blocks"  # what that token is for: no HTTP call
PING_PATH = "/readyz"  # a round trip through the engine loop
ADAPTERS_PATH, UNLOAD_PATH = "/adapters", "/adapters/unload"  # for the owner as well (`backend.server.adapters`)
ADAPTER_SEPARATOR = ":"  # between a model and its adapter, in `model`
EVIDENCE_PATH = "/evidence"  # POST, for the backend's owner: what the hardware attests
WEIGHTS_PATH = "/weights"  # which weights are served, without their content
MARKS_PATH = "/marks"  # POST, for the backend's owner: the test for a watermark
CHALLENGE_PATH = "/challenge"  # POST, for the backend's owner: an answer's activations, computed again
ACTIVATIONS_FIELD = "activations"  # of a choice that has ended: its commitment, for the record and not for clients
SLEEP_PATH, WAKE_PATH = "/sleep", "/wake"  # POST, for the backend's owner (`backend.server.lifecycle`)
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_BAD_WORDS = 512
MAX_ALLOWED_TOKENS = 8192
MAX_JOULES = 1e9
"""No call takes more, 278 kWh: what says so did not measure."""
MAX_FIRST_TOKEN_MS = 86_400_000
MAX_INPUTS = 2048  # texts of one call for embeddings (OpenAI API)
MAX_TOKEN_IDS = 1 << 20  # of one call that turns them into text
Inputs = Field(min_length=1, max_length=MAX_INPUTS)
MAX_BIASES = 1024
FAIL_FAST = Field(fail_fast=True)
"""On every list: the first wrong item is reported, and the rest are not validated."""

FINGERPRINT = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
OUR_FINGERPRINT = re.compile(
    r"fp_(?P<weights>[0-9a-f]{16})_[0-9a-f]{8}(?:_(?P<adapter>[0-9a-f]{16}))?"
)  # `backend.answer.fingerprint`

JsonObject = dict[str, Any]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


FIELDS: set[str] = set()
"""Names of all fields of all wire models: what an error may name of a path. Another part of it, such as a key of
``logit_bias``, is the caller's own word."""


class WireModel(BaseModel):
    """Unknown fields travel on; numbers are not read from strings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        FIELDS.update(cls.model_fields)


class StreamOptions(WireModel):
    include_usage: bool | None = None


class ContentPart(WireModel):
    type: str
    text: str | None = None


class FunctionCall(WireModel):
    name: str | None = None
    arguments: str | None = None


class ToolCall(WireModel):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(WireModel):
    role: NonEmpty
    content: str | Annotated[list[ContentPart], FAIL_FAST] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FAIL_FAST] | None = None
    tool_call_id: str | None = None


class GenerationRequest(WireModel):
    """What both endpoints share. Ranges are OpenAI's; ``None`` means the default of the model."""

    model: NonEmpty
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: float | None = field("temperature")
    top_p: float | None = field("top_p")
    top_k: Annotated[int, Field(gt=-(2**31), lt=2**31)] | None = field("top_k")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | Annotated[list[str], FAIL_FAST, Field(max_length=MAX_STOP_STRINGS)] | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_p: float | None = field("min_p")
    presence_penalty: float | None = field("presence_penalty")
    frequency_penalty: float | None = field("frequency_penalty")
    repetition_penalty: float | None = field("repetition_penalty")
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = (
        None
    )
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: Annotated[list[int], FAIL_FAST, Field(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: Annotated[list[NonEmpty], FAIL_FAST, Field(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[int], FAIL_FAST, Field(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    priority: int | None = Field(None, gt=-(2**31), lt=2**31)
    cache_salt: str | None = None
    deadline_s: float | None = Field(None, gt=0, le=86_400)
    response_format: JsonObject | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], FAIL_FAST] | None = None
    guided_grammar: str | None = None
    structured_outputs: JsonObject | None = None
    user: str | None = None

    @property
    def wants_usage_chunk(self) -> bool:
        return bool(self.stream and self.stream_options and self.stream_options.include_usage)

    @property
    def longest_answer(self) -> int | None:
        """Tokens that one answer may have; None where the request does not say."""
        return self.max_tokens

    @property
    def answers(self) -> int:
        """How many come back."""
        return self.n or 1

    @property
    def sequences(self) -> int:
        """How many are generated for that."""
        return self.answers

    @property
    def prompt_ids(self) -> int:
        """Tokens of prompts that are given as token ids."""
        return 0

    def leading_texts(self) -> Iterator[str]:
        """The texts of the prompt, in order, as far as one asks for them: what a prefix cache would share."""
        return iter(())


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], FAIL_FAST, Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def longest_answer(self) -> int | None:
        """Where both are given, the larger: servers differ in which of them they obey."""
        given = [most for most in (self.max_tokens, self.max_completion_tokens) if most is not None]
        return max(given, default=None)

    def leading_texts(self) -> Iterator[str]:
        for message in self.messages:
            yield message.role
            if isinstance(message.content, str):
                yield message.content
            for part in message.content if isinstance(message.content, list) else ():
                yield part.text if part.text is not None else part.type


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. ``prompt``: a string, strings, token ids, or lists of token ids."""

    prompt: (
        str
        | Annotated[list[str], FAIL_FAST]
        | Annotated[list[int], FAIL_FAST]
        | Annotated[list[Annotated[list[int], FAIL_FAST]], FAIL_FAST]
    )
    max_tokens: int | None = Field(None, ge=0)  # 0 with `echo` only
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool | None = None

    @property
    def prompts(self) -> int:
        """A list of token ids is one prompt; any other list has one in each item."""
        several = isinstance(self.prompt, list) and not (self.prompt and isinstance(self.prompt[0], int))
        return max(1, len(self.prompt)) if several else 1

    @property
    def answers(self) -> int:
        return (self.n or 1) * self.prompts

    @property
    def sequences(self) -> int:
        return max(self.n or 1, self.best_of or 1) * self.prompts

    @property
    def prompt_ids(self) -> int:
        return _ids_in(self.prompt)

    def leading_texts(self) -> Iterator[str]:
        return _texts_of(self.prompt)


class ReadingRequest(GenerationRequest):
    """What reads texts and generates no tokens. Of what asks for tokens of an answer, nothing has a meaning here."""

    @property
    def answers(self) -> int:
        return 1

    @property
    def sequences(self) -> int:
        return 0

    @field_validator("stream")
    @classmethod
    def _comes_whole(cls, stream: bool | None) -> bool | None:
        if stream:
            raise ValueError("this answer is not streamed; set stream to false")
        return stream


class EmbeddingsRequest(ReadingRequest):
    """POST /v1/embeddings. ``input``: a string, strings, token ids, or lists of token ids; at most MAX_INPUTS."""

    input: (
        NonEmpty
        | Annotated[list[NonEmpty], FAIL_FAST, Inputs]
        | Annotated[list[int], FAIL_FAST, Field(min_length=1)]
        | Annotated[list[Annotated[list[int], FAIL_FAST, Field(min_length=1)]], FAIL_FAST, Inputs]
    )
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] | None = None

    @property
    def prompt_ids(self) -> int:
        return _ids_in(self.input)

    def leading_texts(self) -> Iterator[str]:
        return _texts_of(self.input)


class TokenizeRequest(ReadingRequest):
    """POST /v1/tokenize: of a `prompt`, or of `messages` with what the chat template takes (vLLM)."""

    prompt: str | None = None
    messages: Annotated[list[ChatMessage], FAIL_FAST, Field(min_length=1)] | None = None
    tools: Annotated[list[JsonObject], FAIL_FAST] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt and messages are both set or both missing; send one of the two")
        return self

    def leading_texts(self) -> Iterator[str]:
        if self.prompt is not None:
            yield self.prompt


class DetokenizeRequest(ReadingRequest):
    """POST /v1/detokenize (vLLM)."""

    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FAIL_FAST, Field(max_length=MAX_TOKEN_IDS)]

    @property
    def prompt_ids(self) -> int:
        return len(self.tokens)


class RerankRequest(ReadingRequest):
    """POST /v1/rerank: how well each of `documents` answers `query` (Cohere, Jina, vLLM)."""

    query: NonEmpty
    documents: Annotated[list[NonEmpty], FAIL_FAST, Inputs]
    top_n: int | None = Field(None, ge=1)

    def leading_texts(self) -> Iterator[str]:
        yield self.query


class ScoreRequest(ReadingRequest):
    """POST /v1/score: of pairs of texts; one on either side is compared with each of the other (vLLM)."""

    text_1: NonEmpty | Annotated[list[NonEmpty], FAIL_FAST, Inputs]
    text_2: NonEmpty | Annotated[list[NonEmpty], FAIL_FAST, Inputs]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Raises ValueError where two lists differ in length."""
        ones, others = ([side] if isinstance(side, str) else side for side in (self.text_1, self.text_2))
        if len(ones) == 1:
            ones = ones * len(others)
        return list(zip(ones, others, strict=True))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ones, others = (1 if isinstance(side, str) else len(side) for side in (self.text_1, self.text_2))
        if ones not in (1, others):
            raise ValueError("text_1 and text_2 differ in length; send one text_1, or as many as text_2")
        return self


TokenIds = list[int]


def _ids_in(prompt: str | list[str] | TokenIds | list[TokenIds]) -> int:
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], str):
        return 0
    return len(prompt) if isinstance(prompt[0], int) else sum(len(ids) for ids in prompt if isinstance(ids, list))


def _texts_of(prompt: str | list[str] | TokenIds | list[TokenIds]) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
        return
    for item in prompt:
        yield item if isinstance(item, str) else str(item)


class PromptTokensDetails(WireModel):
    cached_tokens: int = 0


def _measured(said: object) -> float | None:
    """Energy is information: what makes no sense is unknown, and no reason to refuse an answer."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return float(said) if isfinite(said) and 0 <= said <= MAX_JOULES else None


def _duration(said: object) -> float | None:
    """As `_measured`, for milliseconds."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return float(said) if isfinite(said) and 0 <= said <= MAX_FIRST_TOKEN_MS else None


class Usage(WireModel):
    """energy_joules (ours): what the call took of the card (`backend.process.gpu_meter`); absent where nothing
    measured it. first_token_ms (ours): from the arrival of the request at the engine to its first token; absent
    where unknown."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    energy_joules: Annotated[float | None, BeforeValidator(_measured)] = None
    first_token_ms: Annotated[float | None, BeforeValidator(_duration)] = None


class ErrorDetail(BaseModel):
    """The body every error carries: ``{"error": {...}}``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | None = None
    capabilities: dict[str, bool] | None = None
    speculation: str | None = None


class ModelList(BaseModel):
    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[Model]


class Readiness(BaseModel):
    """GET /readyz. status: ready, loading, draining, falling_asleep, asleep or waking; stage, done and total (bytes, or
    graphs) say how far the last long undertaking is."""

    model_config = ConfigDict(frozen=True)

    status: str
    stage: str | None = None
    done: int | None = None
    total: int | None = None


CHECKPOINT_FILES = (
    "*.safetensors", "*.json", "*.jinja", "*.model", "additional_chat_templates/*.jinja",
    "[0-9]_*/config.json", "[0-9]_*/*.safetensors",
)  # fmt: skip
"""Files of a folder that the engine reads."""
SIGNATURE_FILE, SIGNER_KEY_FILE = "model.sig", "model.pub"


def is_of_checkpoint(name: str) -> bool:
    """Whether a file of that name, relative to the folder of the checkpoint, is one of `CHECKPOINT_FILES`."""
    folder, _, file = name.rpartition("/")
    for pattern in CHECKPOINT_FILES:
        of_folder, _, of_file = pattern.rpartition("/")
        if fnmatchcase(folder, of_folder) and fnmatchcase(file, of_file):
            return True
    return False


class WeightsReport(BaseModel):
    """GET /weights. sha256: of the checkpoint, over name and SHA-256 of each file; None where it is not known, and
    `why`: ``dummy`` (there are no files), ``unreadable``, or ``changed`` since the load. files: SHA-256 by name.
    signature: the OpenSSF model signature beside them (``model.sig``), as it is; signer_key: the public key beside that
    (``model.pub``, PEM), for signatures that hold no certificate. Neither was checked."""

    model_config = ConfigDict(frozen=True)

    sha256: str | None = Field(pattern="^[0-9a-f]{64}$")
    why: Literal["dummy", "unreadable", "changed"] | None = None
    files: dict[str, str] = Field(default_factory=dict)
    signature: str | None = None
    signer_key: str | None = None


EVIDENCE_DOMAIN = b"domicile attestation v1\n"
"""Begins what evidence is bound to: SHA-512 over it, the nonce, the SHA-256 of the TLS key and that of the weights."""


class EvidenceRequest(BaseModel):
    """POST /evidence. nonce: 32 bytes, hexadecimal digits."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    nonce: str = Field(pattern="^[0-9a-f]{64}$")


class EvidencePiece(BaseModel):
    """technology: sev-snp, tdx, tpm or nvidia. report, signature: base64; a TPM alone signs apart. certificates: PEM,
    from the key that signed it upwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    technology: str
    report: str
    signature: str = ""
    certificates: str = ""


class EvidenceReport(BaseModel):
    """What POST /evidence answers; empty on hardware that attests nothing."""

    model_config = ConfigDict(frozen=True)

    evidence: list[EvidencePiece]


class SleepRequest(BaseModel):
    """POST /sleep. grace_s: seconds that running answers may take; then they are aborted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    grace_s: float = Field(30.0, ge=0, le=3600, allow_inf_nan=False)


class Slept(BaseModel):
    """seconds: with the wait for running answers; released_bytes: 0 if it slept already."""

    model_config = ConfigDict(frozen=True)

    status: str
    seconds: float
    released_bytes: int


MAX_MARKED_TEXT = 1 << 20
MAX_MARK_KEYS = 512


class MarksRequest(BaseModel):
    """POST /marks. keys: base64, 32 bytes each."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str = Field(max_length=MAX_MARKED_TEXT)
    keys: list[str] = Field(min_length=1, max_length=MAX_MARK_KEYS)


class MarksFound(BaseModel):
    """tokens: of the text. pairs: that were looked at. p_values: of each key, by `backend.marks.detector.p_value`."""

    model_config = ConfigDict(frozen=True)

    scheme: str
    tokens: int
    pairs: int
    p_values: list[float]


class ChallengeRequest(BaseModel):
    """POST /challenge: what an answer is challenged with. path: of the backend that the request was for, body: what it
    got. at: when, in milliseconds since the epoch. text: of the answer's choice number `choice`, as its client has it.
    commitment: of that choice, from the record, base64url."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: Literal["/v1/chat/completions", "/v1/completions"]
    body: str
    at: int | None = None
    text: str = Field(max_length=MAX_MARKED_TEXT)
    choice: int = Field(default=0, ge=0)
    commitment: str


ChallengeVerdict = Literal["matched", "other_quantisation", "other_model", "other_prompt", "other_text", "not_compared"]


class ChallengedPart(BaseModel):
    """32 tokens of an answer, from `first` to `last` (counted from 1). exponents: how many of `values` have the same
    sign and exponent. mean, median: differences of their mantissas; steps: mean difference of all values
    (`backend.activations.answer_commitment.Distance`). All None where nothing was compared."""

    model_config = ConfigDict(frozen=True)

    first: int
    last: int
    verdict: ChallengeVerdict
    values: int | None = None
    exponents: int | None = None
    mean: float | None = None
    median: float | None = None
    steps: float | None = None


class Challenged(BaseModel):
    """tokens: of the answer that was committed to, `compared` of which could be. steps: mean over all that was
    compared; `limits`: up to which it is a match, and another quantisation. dtype: that the backend computes in.
    weights_sha256: of the weights that computed it. respelled: the text was found to be drawn in other tokens than its
    tokenizer reads."""

    model_config = ConfigDict(frozen=True)

    verdict: ChallengeVerdict
    scheme: str
    tokens: int
    compared: int
    steps: float | None
    limits: tuple[float, float]
    dtype: str
    weights_sha256: str
    respelled: bool
    parts: tuple[ChallengedPart, ...]


class Woken(BaseModel):
    """seconds: 0 if it was awake."""

    model_config = ConfigDict(frozen=True)

    status: str
    seconds: float


class AdapterNamed(BaseModel):
    """POST /adapters/unload. project: whose calls alone may name it; "": those of all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(max_length=64)
    project: str = Field("", max_length=128)


class AdapterRequest(AdapterNamed):
    """POST /adapters. path: of its folder, below the one of all adapters. sha256: that it has to have, as `Adapter`
    says it; "": any."""

    path: str = Field(max_length=1024)
    sha256: str = Field("", pattern="^(?:[0-9a-f]{64})?$")


class Adapter(BaseModel):
    """sha256: over name and SHA-256 of both files (`models.adapters.peft.digest_of`). bytes: of both."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    project: str
    sha256: str
    rank: int
    bytes: int


class AdapterList(BaseModel):
    """GET /adapters. max_adapters: places for them."""

    model_config = ConfigDict(frozen=True)

    max_adapters: int
    data: list[Adapter]


def sse_data(payload: bytes) -> bytes:
    """One server-sent event (WHATWG HTML §9.2) carrying `payload`, which holds no newline."""
    return b"data: " + payload + b"\n\n"


SSE_DONE = sse_data(b"[DONE]")


def fingerprint_of(answer: JsonObject) -> str | None:
    """An answer's ``system_fingerprint``, if it is one word."""
    found = answer.get("system_fingerprint")
    return found if isinstance(found, str) and FINGERPRINT.fullmatch(found) else None


def same_weights(one: str | None, other: str | None) -> bool | None:
    """Whether two answers came from the same weights, by their fingerprints; None where that is not known: one has
    none, or they are another server's and differ."""
    if one is None or other is None:
        return None
    if one == other:
        return True
    ours = [OUR_FINGERPRINT.fullmatch(fingerprint) for fingerprint in (one, other)]
    if ours[0] is None or ours[1] is None:
        return None
    return all(ours[0][part] == ours[1][part] for part in ("weights", "adapter"))
