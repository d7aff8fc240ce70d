"""Errors of `policy`.

PolicyError
├── PolicyDocumentError   a document is not one we can read; carries every problem with its line
├── LooseningError        a level asks for more than the one above allows; names the rule and its line
├── PolicyTestError       a policy fails a test it carries itself
└── RedactionError        a prompt could not be searched with certainty: deny, never forward
    └── RedactionBlocked  something was found that the policy forbids to send (or that cannot be inspected)

No message ever holds a value from a prompt or an answer: labels and positions only.
"""

from dataclasses import dataclass


class PolicyError(Exception):
    """Root of everything `policy` raises."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a document; ``line`` counts from 1, 0 where no line is known."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"line {self.line}: {where}{self.message}" if self.line else f"{where}{self.message}"


class PolicyDocumentError(PolicyError):
    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class LooseningError(PolicyError):
    """A lower level may only tighten; ``rule`` is the one it tried to loosen, ``line`` where (0: not known)."""

    def __init__(self, rule: str, because: str, line: int = 0) -> None:
        self.rule, self.because, self.line = rule, because, line
        super().__init__(f"{rule}: {because}" + (f" (line {line})" if line else ""))


class PolicyTestError(PolicyError):
    """``failures``: one sentence for each failing test."""

    def __init__(self, failures: tuple[str, ...]) -> None:
        self.failures = failures
        super().__init__("\n".join(failures))


class RedactionError(PolicyError):
    pass


@dataclass(frozen=True, slots=True)
class Finding:
    """Where something was found, such as ``messages[2].content``, and what; never the value."""

    label: str
    position: str

    def __str__(self) -> str:
        return f"{self.label} at {self.position}"


UNREADABLE = "unreadable"  # label of a finding that is no text: images, audio, token ids


class RedactionBlocked(RedactionError):
    def __init__(self, *findings: Finding, hint: str = "") -> None:
        self.findings = findings
        self.labels = tuple(sorted({f.label for f in findings}))
        self.hint = hint
        super().__init__("blocked by policy: " + "; ".join(map(str, findings)) + (f" ({hint})" if hint else ""))
