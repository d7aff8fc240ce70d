"""One choice of an answer: tokens in, parts of text out."""

from collections.abc import Iterable
from dataclasses import dataclass

from backend.chat.interpreter import Interpreter
from backend.chat.logprobs import LogprobEntry, Spelling
from backend.chat.stop_strings import StopStrings
from backend.engine.core.progress import Finish, Progress
from backend.models.checkpoints.tokenizer import Detokenizer, TextModel
from backend.tools.parts import Content, Part, merged


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How tokens become text.

    stops: strings that end it, shown if `include_stop`, and not looked for in its first `min_tokens` tokens nor in
    thoughts and calls. stop_tokens: those whose id is reported if one ends it. logprobs: keep an entry for each token.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    logprobs: bool = False
    stop_tokens: frozenset[int] = frozenset()


class Choice:
    """The text of one choice while it is generated.

    interpreter: reads thoughts and calls in it; None: all of it is content.

    Attributes:
        finish_reason: OpenAI's word, or None while it runs.
        stop_reason: the stop string or the id of the stop token that ended it, as vLLM reports them; None for others.
        tokens: how many the engine made, an end token included.
        total_logprob: sum of their log probabilities, where these were asked for.
    """

    def __init__(self, text_model: TextModel, options: TextOptions, interpreter: Interpreter | None = None) -> None:
        self._detokenizer = Detokenizer(text_model.token_bytes, text_model.texts)
        self._spelling = Spelling(text_model) if options.logprobs else None
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._options = options
        self._interpreter = interpreter
        self._plain = interpreter is None and not options.stops and not options.logprobs
        self._made = 0  # characters of text
        self._cut: int | None = None  # how many of them are shown, once a stop string has ended it
        self._entries: list[LogprobEntry] = []  # of tokens whose text is not shown yet
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.tokens = 0
        self.cached_tokens = 0
        self.total_logprob = 0.0

    def feed(self, progress: Progress) -> list[Part]:
        """New parts to show. May set ``finish_reason``; if the engine did not, the caller must stop the engine."""
        self.cached_tokens = progress.cached
        if self._plain and progress.token is not None and progress.finish is None:  # nearly all tokens of most answers
            self.tokens += 1
            self.total_logprob += progress.logprobs.logprob if progress.logprobs else 0.0
            text = self._detokenizer.feed(progress.token)
            return [Content(text)] if text else []
        parts: list[Part] = []
        if progress.token is not None:
            self.tokens += 1
            self.total_logprob += progress.logprobs.logprob if progress.logprobs else 0.0
            if progress.finish is not Finish.STOP:
                parts += self._read(progress.token, progress)
            elif progress.token in self._options.stop_tokens:
                self.stop_reason = progress.token
        if self._stops.matched:
            self.finish_reason, self.stop_reason = "stop", self._stops.stop
        elif progress.finish is not None:
            self.finish_reason = str(progress.finish)
            parts += self._finish()
        if self.finish_reason == "stop" and self._interpreter is not None and self._interpreter.calls:
            self.finish_reason = "tool_calls"
        return merged(parts)

    @property
    def mean_logprob(self) -> float:
        return self.total_logprob / max(1, self.tokens)

    def _read(self, token: int, progress: Progress) -> list[Part]:
        text = self._detokenizer.feed(token)
        if self._spelling and progress.logprobs:
            self._entries.append(self._spelling.entry(token, progress.logprobs, self._made))
        stops = self._options.stops if self.tokens > self._options.min_tokens else ()
        # A stop string may end anywhere in the text of a token, and only the interpreter knows whether that is content.
        pieces = text if stops and self._interpreter is not None else (text,) if text else ()
        parts: list[Part] = []
        for piece in pieces:
            self._made += len(piece)
            parts += self._until_stop(self._interpreter.feed(piece) if self._interpreter else [Content(piece)], stops)
            if self._stops.matched:
                self._cut = self._made - self._stops.cut
                break
        return parts

    def _finish(self) -> list[Part]:
        """The text has ended: what was held back is shown."""
        cut = self.finish_reason == Finish.LENGTH
        rest = [] if self._interpreter is None else self._interpreter.finish(cut=cut)
        parts = self._until_stop(rest, self._options.stops)
        if self._stops.matched:
            self._cut = self._made - self._stops.cut
            self.finish_reason, self.stop_reason = "stop", self._stops.stop
            return parts
        return [*parts, Content(self._stops.flush())]

    def _until_stop(self, parts: Iterable[Part], stops: tuple[str, ...]) -> list[Part]:
        shown: list[Part] = []
        for part in parts:
            if not isinstance(part, Content):
                shown += [Content(self._stops.flush()), part]
            else:
                shown.append(Content(self._stops.feed(part.text)) if stops else part)
            if self._stops.matched:
                break
        return shown

    def take_entries(self) -> list[LogprobEntry]:
        """Log probabilities of the tokens whose text has begun to show since they were last taken: never of a text that
        is held back for a stop string, or cut off."""
        if self.finish_reason is not None and not self._stops.matched:
            taken, self._entries = self._entries, []
            return taken
        shown = self._made - self._stops.held if self._cut is None else self._cut
        begun = sum(entry.offset < shown for entry in self._entries)
        taken, self._entries = self._entries[:begun], self._entries[begun:]
        return taken
