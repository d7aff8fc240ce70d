"""One choice of an answer: tokens in, text out."""

from dataclasses import dataclass

from backend.engine.progress import Finish, Progress
from backend.logprobs import Entry, Spelling
from backend.models.tokenizer import Detokenizer, TextModel
from backend.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How tokens become text.

    stops: strings that end it, shown if `include_stop`, and not looked for in its first `min_tokens` tokens. logprobs:
    keep an entry for each token.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    logprobs: bool = False


class Choice:
    """``finish_reason`` is OpenAI's word, or None while it runs; ``tokens`` counts what the engine made, an end token
    included; ``total_logprob`` sums their log probabilities, where these were asked for."""

    def __init__(self, text_model: TextModel, options: TextOptions) -> None:
        self._detokenizer = Detokenizer(text_model.token_bytes)
        self._spelling = Spelling(text_model) if options.logprobs else None
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._min_tokens = options.min_tokens
        self._made = 0  # characters of text, and how many of them were shown
        self._shown = 0
        self._entries: list[Entry] = []  # of tokens whose text is not shown yet
        self.finish_reason: str | None = None
        self.tokens = 0
        self.cached_tokens = 0
        self.total_logprob = 0.0

    def feed(self, progress: Progress) -> str:
        """New text to show. May set ``finish_reason``; if the engine did not, it is to be told to stop."""
        self.cached_tokens = progress.cached
        text = ""
        if progress.token is not None:
            self.tokens += 1
            self.total_logprob += progress.logprobs.logprob if progress.logprobs else 0.0
            if progress.finish is not Finish.STOP:
                text = self._read(progress.token, progress)
        if self._stops.matched:
            self.finish_reason = "stop"
        elif progress.finish is not None:
            self.finish_reason = str(progress.finish)
            text += self._stops.flush()
        self._shown += len(text)
        return text

    @property
    def mean_logprob(self) -> float:
        return self.total_logprob / max(1, self.tokens)

    def _read(self, token: int, progress: Progress) -> str:
        text = self._detokenizer.feed(token)
        if self._spelling and progress.logprobs:
            self._entries.append(self._spelling.entry(token, progress.logprobs, self._made))
        self._made += len(text)
        return text if self.tokens <= self._min_tokens else self._stops.feed(text)

    def take_entries(self) -> list[Entry]:
        """Log probabilities of the tokens whose text has begun to show since they were last taken: never of a text that
        is held back, or cut off."""
        if self.finish_reason is not None and not self._stops.matched:
            taken, self._entries = self._entries, []
            return taken
        begun = sum(entry.offset < self._shown for entry in self._entries)
        taken, self._entries = self._entries[:begun], self._entries[begun:]
        return taken
