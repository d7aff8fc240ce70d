"""The prompt that is sent to a backend: inspected, redacted, and without fields that a model does not need.

Redaction never fails open: any error during inspection refuses the request.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal

from audit.random_pieces import RandomPieces
from gateway.content.inspection_process import FilterSettings, plain
from gateway.errors import BackendRefused, ContentUnreadable, InvalidRequest, RedactionRefused
from gateway.openai.answer import FilterFactory, whole
from gateway.openai.checked_call import IDENTIFYING_FIELDS, Call
from gateway.openai.finite_json import NotFinite, write
from policy.errors import UNREADABLE, RedactionBlocked, RedactionError
from policy.facts import Priority
from policy.redact.actions.pseudonyms import Pseudonyms, nonce_from
from policy.redact.redactor import NamesByText, RedactedBody, Redactor
from policy.redact.request import BodyLayout
from policy.redact.stream import StreamFilter
from regions.fleet.fleet import Backend

_nonce = RandomPieces(6)
"""Random part of a request's placeholders. It makes them unlike any text; it need not be secret."""
WITHHELD = "The backend refused the request; its message is withheld by the policy"


class OutputFilters:
    """Creates the output filters of one answer and sums their findings."""

    def __init__(self, redactor: Redactor, pseudonyms: Pseudonyms) -> None:
        self._redactor = redactor
        self._pseudonyms = pseudonyms
        self._made: list[StreamFilter] = []
        self._elsewhere: dict[str, int] = {}

    def make(self, json_escaped: bool) -> StreamFilter:
        """Return a new filter for one text of the answer."""
        made = self._redactor.stream_filter(self._pseudonyms, json_escaped=json_escaped)
        self._made.append(made)
        return made

    @property
    def settings(self) -> FilterSettings:
        """The parameters from which another process creates the filters."""
        return FilterSettings(plain(self._redactor.plan), self._redactor.hash_key, self._pseudonyms)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of findings from another process."""
        _add(self._elsewhere, counts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Findings of all filters, by label."""
        total = {**self._elsewhere}
        for made in self._made:
            if made.counts:
                _add(total, made.counts)
        return total


def _add(total: dict[str, int], counts: Mapping[str, int]) -> None:
    for label, count in counts.items():
        total[label] = total.get(label, 0) + count


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to send.

    `body`: the bytes to send. `fields`: the same, parsed. `output`: filters of the answer; None if it needs none.
    `refusals`: filters for error messages of a backend, also on routes without text answers.
    """

    body: bytes
    fields: Mapping[str, Any]
    counts: Mapping[str, int]
    output: OutputFilters | None
    generates: bool = True
    refusals: OutputFilters | None = None

    def filtered(self, refused: BackendRefused) -> BackendRefused:
        """Return `refused` with its message filtered, because a backend's error may quote the request or the answer.

        If the policy blocks the message, or it cannot be inspected, the message is withheld.
        """
        if self.refusals is None:
            return refused
        try:
            message = whole(refused.message, self.refusals.make(False))
            param = refused.param and whole(refused.param, self.refusals.make(False))
        except RedactionError:
            return refused.saying(WITHHELD, None)
        return refused.saying(message, param)

    @property
    def refusal_counts(self) -> Mapping[str, int]:
        """Findings in the backend's error messages, by label."""
        return self.refusals.counts if self.refusals is not None else {}

    def body_for(self, backend: Backend, *, watermark: bool = False) -> bytes:
        """As it leaves for `backend`: without what is not OpenAI's own, where that would be refused.

        watermark: policy demands one. The server is asked for it in its own words, and a caller's are left out.
        """
        refused = _refused_by(backend, generates=self.generates)
        asked: Mapping[str, Any] = {}
        fields: Mapping[str, Any] = self.fields
        if watermark and self.generates:
            fields = _without_marks(fields)
            asked = _watermark_asked_of(backend)
        refused &= fields.keys()
        if fields is self.fields and not (refused or asked):
            return self.body
        return write({name: value for name, value in fields.items() if name not in refused} | {**asked})

    @property
    def make_filter(self) -> FilterFactory | None:
        """Factory of the answer's filters; None if it needs none."""
        return self.output.make if self.output is not None else None


_WATERMARK_FIELDS = frozenset(
    {
        "customlogitprocessor", "customparams", "extraargs", "logitprocessor", "logitprocessors",
        "logitsprocessor", "logitsprocessorargs", "logitsprocessors", "vllmxargs",
    }
)  # fmt: skip
"""By which callers reach what changes logits in vLLM, SGLang and TensorRT-LLM, plug-ins included, and so may end a mark
off; beside every field that names a watermark, by whatever word a release of theirs or of TGI has for it. In lower case
and without signs, at any depth."""
_WRITTEN = frozenset(
    {
        "documents", "functions", "guided_grammar", "guided_json", "input", "instructions", "messages", "prompt",
        "response_format", "stop", "structured_outputs", "suffix", "system", "text", "tool_choice", "tools",
    }
)  # fmt: skip
"""Fields with texts and schemas, in which a name is the caller's own."""


def _without_marks(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields without those that reach a watermark, whatever object they are in; the same if it has none."""
    kept = {name: value if name in _WRITTEN else _kept(value) for name, value in fields.items() if not _is_mark(name)}
    same = len(kept) == len(fields) and all(kept[name] is value for name, value in fields.items())
    return fields if same else kept


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        return _without_marks(value)
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        kept = [_kept(each) for each in value]
        return value if all(one is each for one, each in zip(kept, value, strict=True)) else kept
    return value


def _is_mark(name: str) -> bool:
    plain = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name))).lower()
    return plain in _WATERMARK_FIELDS or "watermark" in plain or "synthid" in plain


_WATERMARK_ASKED: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"watermarking": True},
    "sglang": {"watermark": {"enabled": True}},
    "tensorrt-llm": {},
}


def _watermark_asked_of(backend: Backend) -> Mapping[str, Any]:
    """What a server that is not ours is sent to mark its answer (`regions.identity.trust.Watermarking`)."""
    trust = backend.trust
    return {} if trust is None or trust.watermark is None else _WATERMARK_ASKED[trust.watermark]


_OURS = frozenset({"cache_salt", "priority", "deadline_s"})


def _refused_by(backend: Backend, *, generates: bool) -> frozenset[str]:
    trust = backend.trust
    if backend.kind == "domicile":
        return frozenset()
    if not generates or (trust is not None and trust.plain):
        return _OURS
    if trust is not None and trust.priority:
        return frozenset({"deadline_s"})
    return frozenset({"priority", "deadline_s"})


def takes_priorities(backend: Backend) -> bool:
    """Return whether the backend schedules calls by priority."""
    return "priority" not in _refused_by(backend, generates=True)


Place = Priority | Literal["batch"]
"""Position in the engine's queue: the policy's priority, or `batch` for batch lines, which come after all others."""
_PLACES: Mapping[Place, int] = {"high": -1, "normal": 0, "low": 1, "batch": 2}
"""Priorities as defined by vLLM: lower runs first."""


def place_in_queue(priority: Place, own: Any) -> int:
    """Return the priority value of a call. `own`, the client's value, may only move it further back."""
    if not isinstance(own, int) or isinstance(own, bool):
        return _PLACES[priority]
    return max(_PLACES[priority], min(own, _PLACES["low"]))


def prepare(
    call: Call, redactor: Redactor, project: str, names: NamesByText | None = None, priority: Place = "normal"
) -> Prompt:
    """Redact every string of `call`, request usage from the backend, and isolate the prefix cache of `project`.

    ``names``: spans of person names in its texts, if the policy requires them (`gateway.content.person_names`).
    ``priority``: set by the policy; a value from the client may only move the call further back.

    Raises RedactionRefused if the policy blocks a finding, or if anything could not be inspected.
    """
    with redaction_refusals:
        redacted = redactor.redact_body(*redaction_arguments(call, redactor, project, names))
    return leaving(call, redactor, project, redacted, priority)


def redaction_arguments(
    call: Call, redactor: Redactor, project: str, names: NamesByText | None = None
) -> tuple[dict[str, Any], BodyLayout, str, NamesByText | None, bytes | None]:
    """Return body, layout, nonce, names and key: the arguments of `Redactor.redact_body`."""
    fields = {name: value for name, value in call.body.items() if name not in IDENTIFYING_FIELDS}
    conversation = _conversation(call)
    shared = redactor.conversation(f"{project}\0{conversation}") if conversation else None
    nonce, key = shared or (nonce_from(_nonce()), None)
    return fields, call.endpoint.layout, nonce, names, key


class _RedactionRefusals:
    """A block whose errors of redaction become RedactionRefused. A class, since a generator for each call would cost
    more than the check."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, RedactionError):
            return
        if not isinstance(error, RedactionBlocked):
            raise RedactionRefused(f"The request could not be inspected and was not sent: {error}") from None
        if error.labels == (UNREADABLE,):
            place = error.findings[0].position
            raise ContentUnreadable(
                f"{error.hint[:1].upper()}{error.hint[1:]} (at {place}); the request was not sent",
                param=place.replace("[", ".").replace("]", ""),
                details={"findings": [asdict(finding) for finding in error.findings]},
            ) from None
        raise RedactionRefused(
            f"The request contains data that its policy blocks: {', '.join(error.labels)}; remove it from the request",
            code="redaction_blocked",
            details={"findings": [asdict(finding) for finding in error.findings]},
        ) from None


redaction_refusals = _RedactionRefusals()


def unredacted(call: Call, redactor: Redactor, project: str, priority: Place = "normal") -> Prompt:
    """Return the prompt of `call` unredacted, for a backend that may receive it (`policy.decision.sovereign`).

    The answer is filtered like any other.
    """
    fields = {name: value for name, value in call.body.items() if name not in IDENTIFYING_FIELDS}
    redacted = RedactedBody(fields, False, {}, Pseudonyms(nonce_from(_nonce())))
    return leaving(call, redactor, project, redacted, priority)


def leaving(call: Call, redactor: Redactor, project: str, redacted: RedactedBody, priority: Place) -> Prompt:
    """Return the prompt to send for a redacted body. Raises InvalidRequest."""
    generates = call.endpoint.generates
    is_identity = redactor.leaves_answers(redacted.pseudonyms)
    if generates and not is_identity and (call.body.get("logprobs") or call.body.get("prompt_logprobs")):
        raise InvalidRequest("logprobs would reveal redacted text; ask without them", param="logprobs")
    if not (generates or is_identity) and call.body.get("return_token_strs"):
        param = "return_token_strs"
        raise InvalidRequest(f"{param} would reveal redacted text; ask without it", param=param)
    # A shared prefix is answered faster. Without a salt, one project could infer from that what another one asks.
    fields = {**redacted.body, "cache_salt": f"{project}:{redacted.body.get('cache_salt') or ''}"}
    if place := place_in_queue(priority, fields.pop("priority", None)):
        fields["priority"] = place
    fields = _as_asked(call, fields)
    try:
        body = write(fields)
    except NotFinite as error:
        field = str(error.place[0]) if error.place else None  # deeper levels may contain the client's text
        raise InvalidRequest(f"{field}: a number is too large; JSON has no infinity", param=field) from None
    filters = None if is_identity else OutputFilters(redactor, redacted.pseudonyms)
    return Prompt(
        body=body,
        fields=fields,
        counts=redacted.counts,
        output=filters if generates else None,
        generates=generates,
        refusals=filters,
    )


def _as_asked(call: Call, fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` as the backend's route accepts them."""
    if (sends := call.endpoint.sends) is not None:
        return {name: value for name, value in fields.items() if name in sends}
    if call.stream and not call.request.wants_usage_chunk:
        # Usage is always requested: tokens are metered and limited also for clients that do not ask for it.
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return fields


def _conversation(call: Call) -> str | None:
    """Return the client's name of the conversation, within which a value keeps its placeholder.

    The name is not sent to the backend.
    """
    metadata = call.body.get("metadata")
    name = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else None


def output_refused(error: RedactionError) -> RedactionRefused:
    """Return the error for an answer that is blocked or could not be inspected. No more of it is sent."""
    if isinstance(error, RedactionBlocked):
        return RedactionRefused(
            f"The answer contains data that its policy blocks: {', '.join(error.labels)}", code="answer_blocked"
        )
    return RedactionRefused(f"The answer could not be inspected and was not sent: {error}", code="answer_unreadable")
