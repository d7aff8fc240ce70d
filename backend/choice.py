"""One choice of an answer: tokens in, text out."""

from collections.abc import Sequence

from backend.engine.progress import Finish, Progress
from backend.models.tokenizer import Detokenizer, TextModel
from backend.stop_strings import StopStrings


class Choice:
    """``finish_reason`` is OpenAI's word, or None while it runs; ``tokens`` counts what the engine made, an end token
    included."""

    def __init__(self, text_model: TextModel, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(text_model.token_bytes)
        self._stops = StopStrings(stops)
        self.finish_reason: str | None = None
        self.tokens = 0
        self.cached_tokens = 0

    def feed(self, progress: Progress) -> str:
        """New text to show. May set ``finish_reason``; if the engine did not, it is to be told to stop."""
        self.cached_tokens = progress.cached
        text = ""
        if progress.token is not None:
            self.tokens += 1
            if progress.finish is not Finish.STOP:
                text = self._stops.feed(self._detokenizer.feed(progress.token))
        if self._stops.matched:
            self.finish_reason = "stop"
        elif progress.finish is not None:
            self.finish_reason = str(progress.finish)
            text += self._stops.flush()
        return text
