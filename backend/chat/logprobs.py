"""Log probabilities in the shapes of OpenAI's two endpoints, and vLLM's of a prompt's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend.engine.core.progress import TokenLogprobs
from backend.models.checkpoints.tokenizer import Detokenizer, TextModel
from backend.wire import JsonObject


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """One token. raw: its bytes. offset: where in the text it begins, in characters. logprob: None for what stands
    first."""

    text: str
    raw: bytes
    logprob: float | None
    top: list[tuple[str, bytes, float]]
    offset: int

    def moved(self, by: int) -> "LogprobEntry":
        """The same behind a text of so many characters."""
        return replace(self, offset=self.offset + by)


class Spelling:
    """Tokens as text: control tokens as their names, pieces of a character as OpenAI spells them ("bytes:\\xe2\\x82").

    Never U+FFFD, which would make different tokens look the same.
    """

    def __init__(self, text_model: TextModel) -> None:
        self._text_model = text_model

    def spelled(self, token: int) -> tuple[str, bytes]:
        table = self._text_model.token_bytes
        raw = table[token] if token < len(table) else b""
        if not raw:
            return self._text_model.tokenizer.id_to_token(token) or "", b""
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw

    def entry(self, token: int, logprobs: TokenLogprobs | None, offset: int) -> LogprobEntry:
        text, raw = self.spelled(token)
        if logprobs is None:
            return LogprobEntry(text, raw, None, [], offset)
        top = [(*self.spelled(other), logprob) for other, logprob in logprobs.top]
        return LogprobEntry(text, raw, logprobs.logprob, top, offset)

    def prompt_entries(self, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[LogprobEntry]:
        """For `echo`: of the first token nothing is known."""
        detokenizer = Detokenizer(self._text_model.token_bytes)
        entries = []
        offset = 0
        for i, token in enumerate(prompt):
            entries.append(self.entry(token, logprobs[i - 1] if i else None, offset))
            offset += len(detokenizer.feed(token))
        return entries

    def prompt_logprobs(self, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[JsonObject | None]:
        """vLLM's shape: for each token of the prompt, by id, its own and the likeliest."""
        rows: list[JsonObject | None] = [None]
        for token, found in zip(prompt[1:], logprobs, strict=True):
            ranked = {other: (logprob, rank) for rank, (other, logprob) in enumerate(found.top, 1)}
            ranked[token] = (found.logprob, found.rank)
            rows.append(
                {
                    str(other): {"logprob": logprob, "rank": rank, "decoded_token": self.spelled(other)[0]}
                    for other, (logprob, rank) in ranked.items()
                }
            )
        return rows


def chat_logprobs(entries: Sequence[LogprobEntry]) -> JsonObject:
    """`choices[].logprobs` of a chat completion."""

    def described(text: str, raw: bytes, logprob: float | None) -> JsonObject:
        return {"token": text, "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            {**described(e.text, e.raw, e.logprob), "top_logprobs": [described(*other) for other in e.top]}
            for e in entries
        ],
        "refusal": None,
    }


def completion_logprobs(entries: Sequence[LogprobEntry]) -> JsonObject:
    """`choices[].logprobs` of a completion. Of tokens that are spelled the same, the likelier is listed."""

    def top(entry: LogprobEntry) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        found: dict[str, float] = {}
        for text, _, logprob in [(entry.text, entry.raw, entry.logprob), *entry.top]:
            found[text] = max(logprob, found.get(text, logprob))
        return found

    return {
        "tokens": [e.text for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": [top(e) for e in entries],
        "text_offset": [e.offset for e in entries],
    }
