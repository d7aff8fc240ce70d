"""Data received of a backend's answer so far, for metering, metrics and the record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from audit.events.event import AnswerPrints
from backend.wire import OUR_FINGERPRINT, Usage
from gateway.api_format import EventWriter
from gateway.content.said_text import SaidText
from gateway.content.whole_answer import AnswerSummary
from gateway.errors import BackendFailed
from gateway.openai.answer import count_tool_calls
from gateway.openai.checked_call import Call
from gateway.openai.usage import MAX_TOKENS
from gateway.upstream.answer_memory import AnswerShare

CHARACTERS_PER_TOKEN = 3
"""Characters per token, low enough for the languages of the EU. Used if the real count is not known."""


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of one call.

    `cached`: prompt tokens that the backend had computed before. `estimated`: the backend did not report tokens, so
    they are derived from the text received.
    """

    prompt: int
    answer: int
    cached: int = 0
    estimated: bool = False


@dataclass(slots=True)
class ReceivedAnswer:
    """One attempt's answer. It grows while the answer arrives. Times are `perf_counter` seconds.

    `called`: when the backend was called; None before that, and after the backend failed. `bytes_out`: sent to the
    client. `characters_out`: of text, before the output filter. `redactions`: findings of the output filter, by label.
    `watermarks`: by choice, what our engine says of its mark. `closed`: the outcome was handed to the record.
    `events`: what writes a stream in the events of another API. `said`: the text for the client, where it is to be
    fingerprinted; `prints`: its fingerprints. `manifest`: what came of its manifest. `weights`: SHA-256 of those that
    the backend has shown; `weights_differ`: the answer came from others. `prefill`: where the prompt was computed, if
    another backend was named for it. `activations`: by choice, the commitment to its model's. `share`: of the memory
    for large answers.
    """

    called: float | None = None
    first_token: float | None = None
    usage: Usage | None = None
    finish_reasons: list[str] = field(default_factory=list)
    fingerprint: str | None = None
    watermarks: dict[int, str] = field(default_factory=dict)
    tool_calls: int = 0
    bytes_out: int = 0
    chunks_out: int = 0
    characters_out: int = 0
    redactions: Mapping[str, int] = field(default_factory=dict)
    closed: bool = False
    events: EventWriter | None = None
    said: SaidText | None = None
    prints: AnswerPrints | None = None
    manifest: str | None = None
    weights: str | None = None
    weights_differ: bool = False
    prefill: Literal["elsewhere", "here"] | None = None
    activations: dict[int, str] = field(default_factory=dict)
    share: AnswerShare | None = None

    def give_back(self) -> None:
        """Free the memory that the answer held. Later calls change nothing."""
        if self.share is not None:
            self.share.give_back()

    def came_from(self, fingerprint: str | None) -> None:
        """Note what the answer says that it came from. Raises BackendFailed where that is not what the backend has
        shown, as of one that was restarted with other weights since it was asked."""
        said = None if fingerprint is None else OUR_FINGERPRINT.fullmatch(fingerprint)
        if self.weights is not None and said is not None and not self.weights.startswith(said["weights"]):
            self.weights_differ = True
            raise BackendFailed("The backend answered from other weights than it has shown", elsewhere=True)
        self.fingerprint = fingerprint

    def note_first_token(self, choice: Mapping[str, Any]) -> None:
        """Note the time of the first chunk with text or a tool call.

        Servers open a stream with only a role, some before they have computed a token.
        """
        if self.first_token is not None:
            return
        delta = choice.get("delta")
        said = delta.items() if isinstance(delta, dict) else ()
        if choice.get("text") or any(value for name, value in said if name != "role"):
            self.first_token = perf_counter()

    def count_tool_calls(self, message: object) -> None:
        """Count the tool calls that begin in a message or delta. Later deltas of a call have no id."""
        self.tool_calls += count_tool_calls(message)

    def note(self, told: AnswerSummary) -> None:
        """Note the data of a complete answer for metering and the record."""
        self.usage = told.usage
        self.came_from(told.fingerprint)
        self.characters_out += told.characters
        self.tool_calls += told.tool_calls
        self.finish_reasons.extend(told.finish_reasons)
        self.watermarks.update(enumerate(told.watermarks))
        self.activations.update(told.activations)

    def used(self, call: Call) -> Used | None:
        """Return the tokens of `call` to charge; None if no backend answered.

        A truncated answer costs the prompt and what was sent of it. Where a server reports a prompt or a text of no
        tokens (some report one side only, or the prompt in the first chunk of a stream that is cut), that side is
        derived from the text too.
        """
        told = self.usage
        if told is None:
            return self._estimated(call, Usage()) if self.called or self.chunks_out else None
        prompt, answer = _bounded(told.prompt_tokens), _bounded(told.completion_tokens)
        is_whole = prompt and (answer or not self.characters_out)
        if is_whole or not (prompt or answer or told.total_tokens):  # a route that generates nothing uses nothing
            details = told.prompt_tokens_details
            cached = _bounded(details.cached_tokens) if details is not None else 0
            return Used(prompt, answer, min(prompt, cached))
        return self._estimated(call, told)

    def _estimated(self, call: Call, told: Usage) -> Used:
        prompt, answer = _bounded(told.prompt_tokens), _bounded(told.completion_tokens)
        if not prompt:
            prompt = max(-(-call.prompt_characters // CHARACTERS_PER_TOKEN), call.request.prompt_ids)
        by_text = -(-self.characters_out // CHARACTERS_PER_TOKEN)
        return Used(prompt, answer or max(self.chunks_out, by_text), estimated=True)

    @property
    def energy_mj(self) -> int | None:
        """Energy reported by the backend, in millijoules; None if it reported none."""
        joules = None if self.usage is None else self.usage.energy_joules
        return None if joules is None else round(joules * 1000)

    @property
    def backend_ms(self) -> int | None:
        """Milliseconds since the backend was called; None if it was not, or failed."""
        return None if self.called is None else round((perf_counter() - self.called) * 1000)

    def first_token_s(self, started: float) -> float | None:
        """Return the seconds from `started` to the first token; None if unknown.

        Uses the engine's report, plus the time until the backend was called, or else the arrival of the first text of a
        stream.
        """
        said = self.usage.first_token_ms if self.usage is not None else None
        if said is not None and self.called is not None:
            return self.called - started + said / 1000
        return None if self.first_token is None else self.first_token - started


def _bounded(said: int) -> int:
    """Limit a token count to 0 and MAX_TOKENS, so that metering does not depend on the check by the reader."""
    return min(max(said, 0), MAX_TOKENS)
