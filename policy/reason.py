"""Why a request or a backend is refused."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the request (``candidate`` is None) or one candidate is refused. ``article``: the law behind the rule."""

    rule: str
    candidate: str | None
    because: str
    article: str = ""

    def __str__(self) -> str:
        subject = f"{self.candidate}: " if self.candidate else ""
        return f"{subject}{self.because} [{self.rule}{f'; {self.article}' if self.article else ''}]"
