"""Errors of `policy`.

PolicyError
├── PolicyDocumentError   a document is not one we can read; carries every problem with its line
├── LooseningError        a level asks for more than the one above allows; names the rule and its line
├── PolicyTestError       a policy fails a test it carries itself
└── RedactionError        a prompt could not be searched with certainty: deny, never forward
    └── RedactionBlocked  something was found that the policy forbids to send (or that cannot be inspected)

No message ever holds a value from a prompt or an answer: labels and positions only. Each has the form
``<what>; <how to fix it>``: the fix is in the message, or in the class for all its messages (`fix`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class PolicyError(Exception):
    """Base of all of them. `fix`: the remedy of every message of the class that names none itself."""

    fix: ClassVar[str] = ""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a document; ``line`` counts from 1, 0 where no line is known."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"line {self.line}: {where}{self.message}" if self.line else f"{where}{self.message}"


def invalid_value(error: Mapping[str, Any]) -> str:
    """One error of a pydantic ValidationError as ``<what>; <how to fix it>``, without the value.

    A message of our own validators is left as it is; one of pydantic's says what the value has to be.
    """
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    return f"the value is not valid; {error['msg'][:1].lower()}{error['msg'][1:]}"


class PolicyDocumentError(PolicyError):
    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class LooseningError(PolicyError):
    """A lower level may only tighten; ``rule`` is the one it tried to loosen, ``line`` where (0: not known)."""

    def __init__(self, rule: str, because: str, line: int = 0) -> None:
        self.rule, self.because, self.line = rule, because, line
        where = f" (line {line})" if line else ""
        super().__init__(f"{rule}: {because}{where}; tighten {rule}, or leave it out")


class PolicyTestError(PolicyError):
    """``failures``: one sentence for each failing test."""

    def __init__(self, failures: tuple[str, ...]) -> None:
        self.failures = failures
        super().__init__("\n".join(failures))


class RedactionError(PolicyError):
    fix = "report it to the operator"


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
