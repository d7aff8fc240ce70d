"""The redactor of one policy: compiled once, used for every request and every answer under it."""

import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from policy.errors import Finding, RedactionBlocked, RedactionError
from policy.redact.actions.actions import keyed_hash, mask, require_key
from policy.redact.actions.placeholder_forms import search as mentions
from policy.redact.actions.plan import KINDS, STRICTNESS, Action, RedactionPlan, action_for, general_label
from policy.redact.actions.pseudonyms import LITERAL, PLACEHOLDER, Pseudonyms, nonce_from
from policy.redact.detectors.custom import CUSTOM, custom_detector
from policy.redact.detectors.detectors import DETECTORS, Detector, Identities, Span, find_spans, warm
from policy.redact.detectors.encoded import Encoded, find_encoded
from policy.redact.labels import PERSON
from policy.redact.request import BodyLayout, rewrite_body
from policy.redact.split_values import with_whole_values
from policy.redact.stream import StreamFilter
from policy.redact.text import json_text
from policy.redact.text.json_text import as_read

_ROLES = frozenset({"assistant", "developer", "function", "system", "tool", "user"})
MAX_CHARACTERS = 4_000_000  # of one request: seconds of CPU, which others would wait for
NamesByText = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class RedactedBody:
    """``body``: what may be sent. ``counts``: findings by label. ``pseudonyms``: what `StreamFilter` restores from."""

    body: dict[str, Any]
    changed: bool
    counts: Mapping[str, int]
    pseudonyms: Pseudonyms


class Redactor:
    """Applies one plan. Safe to share between threads and tasks: it holds no state of any request.

    Args:
        plan: what to look for and what to do, each way.
        hash_key: the tenant's key; required where the plan hashes.
        detectors: in order of precedence.
    Raises RedactionError if the plan names a label that no detector finds, or hashes without a key.
    """

    def __init__(
        self, plan: RedactionPlan, *, hash_key: bytes | None = None, detectors: Sequence[Detector] = DETECTORS
    ) -> None:
        warm()
        found = {detector.label for detector in detectors} | {PERSON}
        if plan.words or plan.patterns:
            detectors = (*detectors, custom_detector(plan.words, plan.patterns))
        own = {f"{CUSTOM}.{name}" for name in (*plan.words, *plan.patterns)}
        asked = {*plan.input, *plan.output} - own
        if missing := sorted(
            label
            for label in asked
            if label not in (KINDS if "." in label else found) or general_label(label) not in found
        ):
            raise RedactionError(f"no detector finds {', '.join(missing)}; use the labels that docs/redaction.md lists")
        if "hash" in (*plan.input.values(), *plan.output.values()):
            require_key(hash_key)
        self.plan = plan
        self._hash_key = hash_key
        self._identities = Identities(detectors)
        self._input = _needed(detectors, plan.input)
        self._output = _needed(detectors, plan.output)
        self._pseudonymises = "pseudonymise" in plan.input.values()
        self._clean_roles: dict[str, bool] = {}

    @property
    def hash_key(self) -> bytes | None:
        """The tenant's key: with the plan, all that another process needs to make this redactor."""
        return self._hash_key

    def is_clean(self, role: str) -> bool:
        """Whether nothing is found in the name of a role, which every message has. Not for any other text: the answer
        is kept."""
        known = self._clean_roles.get(role)
        if known is None:
            found = self.looks_for_names or find_spans(role, 0, self._input)
            known = self._clean_roles[role] = not found
        return known

    @property
    def looks_for_names(self) -> bool:
        """Whether `redact_body` needs ``names``."""
        return PERSON in self.plan.input and all(detector.label != PERSON for detector in self._input)

    def texts(self, body: dict[str, Any], layout: BodyLayout) -> tuple[str, ...]:
        """Every string of a request as detectors read it: where names are to be looked for. Raises as `redact_body`."""
        texts: dict[str, None] = {}

        def collect(text: str, position: str, *, escaped: bool = False) -> str:
            texts[as_read(text).text] = None
            return text

        rewrite_body(self._whole(body, layout), layout, collect)
        return tuple(texts)

    def _whole(self, body: dict[str, Any], layout: BodyLayout) -> dict[str, Any]:
        """Values that were cut over parts or messages, put together."""
        return with_whole_values(body, self._input) if "messages" in layout.prompts else body

    def conversation(self, name: str) -> tuple[str, bytes] | None:
        """Nonce and key that all requests of a conversation share; None without a key of the tenant's."""
        if self._hash_key is None:
            return None
        key = hmac.digest(self._hash_key, b"conversation\0" + name.encode("utf-8", "surrogatepass"), "sha256")
        return nonce_from(hmac.digest(key, b"nonce", "sha256")[:6]), key

    def redact_body(
        self,
        body: dict[str, Any],
        layout: BodyLayout,
        nonce: str,
        names: NamesByText | None = None,
        key: bytes | None = None,
    ) -> RedactedBody:
        """Redact every string of a request to the route of `layout`.

        ``names``: spans of persons' names for each of `texts`, where `looks_for_names`; a text that is missing there
        is an error.

        `nonce` belongs to this request alone, see `pseudonyms.nonce_from`, or with a `key` to one conversation (see
        `conversation`). Raises RedactionBlocked where the plan
        blocks what was found or a part cannot be inspected, RedactionError for anything else: then deny.
        """
        if self.looks_for_names and names is None:
            raise RedactionError(
                "names of persons are to be redacted, and nothing looks for them"
                "; install the extra `ner`, or remove person from the policy"
            )
        run = _Run(self, Pseudonyms(nonce, key), names if self.looks_for_names else None)
        if not self.plan.input:
            return RedactedBody(body, False, MappingProxyType({}), run.pseudonyms)
        try:
            redacted = rewrite_body(self._whole(body, layout), layout, run.rewrite)
        except RedactionError:
            raise
        except Exception as error:  # whatever it was, the body is not known to be clean
            raise RedactionError(f"redaction failed with {type(error).__name__}") from None
        if run.blocked:
            raise RedactionBlocked(*run.blocked)
        return RedactedBody(
            redacted if run.changed else body, run.changed, MappingProxyType(run.counts), run.pseudonyms
        )

    def stream_filter(self, pseudonyms: Pseudonyms, *, json_escaped: bool = False) -> StreamFilter:
        """A filter for one choice's text, or for one tool call's arguments (``json_escaped``)."""
        return StreamFilter(
            self.plan.output, self._output, pseudonyms, self._hash_key, self._identities, json_escaped=json_escaped
        )

    def restore_text(self, text: str, pseudonyms: Pseudonyms, *, json_escaped: bool = False) -> str:
        """A whole answer at once: the same result as streaming it in any pieces."""
        return self.stream_filter(pseudonyms, json_escaped=json_escaped).flush(text)


def _needed(detectors: Sequence[Detector], actions: Mapping[Any, Any]) -> tuple[Detector, ...]:
    """Detectors of the labels in the plan, and those before them, which claim what these would mistake."""
    named = {general_label(label) for label in actions}
    last = max((index for index, d in enumerate(detectors) if d.label in named), default=-1)
    return tuple(detectors[: last + 1])


class _Run:
    """The state of one request while its strings are redacted."""

    def __init__(self, redactor: Redactor, pseudonyms: Pseudonyms, names: NamesByText | None) -> None:
        self._redactor = redactor
        self._detectors = redactor._input
        if names is not None:
            self._detectors = (*self._detectors, Detector(PERSON, lambda text, _: names[str(text)]))
        self.pseudonyms = pseudonyms
        self.counts: Counter[str] = Counter()
        self.blocked: list[Finding] = []
        self.changed = False
        self._characters = 0

    def rewrite(self, text: str, position: str, *, escaped: bool = False) -> str:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise RedactionError(
                f"it is longer than the {MAX_CHARACTERS} characters that are inspected; send less text"
            )
        if text in _ROLES and self._redactor.is_clean(text):
            return text
        view = as_read(text)
        spans = self._with_encoded(view.text, find_spans(view.text, 0, self._detectors))
        if self._redactor._pseudonymises:
            spans = _with_literals(view.text, spans, self.pseudonyms)
        if not spans:
            return text
        pieces: list[str] = []
        at = 0
        for span in spans:
            start, end = view.span(span.start, span.end)
            seen = view.text[span.start : span.end]
            written = json_text.unescape(text[start:end]).text if escaped else text[start:end]
            replacement = self._replacement(span, seen, written, position)
            if replacement is not None:
                pieces += text[at:start], json_text.escaped(replacement) if escaped else replacement
                at = end
        if not pieces:
            return text
        self.changed = True
        return "".join(pieces) + text[at:]

    def _with_encoded(self, text: str, spans: list[Span]) -> list[Span]:
        """Add findings in base64; of several findings in one, that with the strictest action."""
        plan = self._redactor.plan.input
        strictest: dict[int, tuple[int, Span]] = {}
        for span in find_encoded(text, self._redactor._input):
            if (action := action_for(plan, span.label)) is not None:
                rank = STRICTNESS[action]
                if span.start not in strictest or rank > strictest[span.start][0]:
                    strictest[span.start] = (rank, span)
        for _, new in strictest.values():
            if not any(old.start <= new.start and new.end <= old.end for old in spans):
                spans = [old for old in spans if old.end <= new.start or new.end <= old.start] + [new]
        return sorted(spans) if strictest else spans

    def _canonical(self, span: Span, seen: str, written: str) -> str:
        if isinstance(span, Encoded):
            return written
        return self._redactor._identities.canonical(span.label, seen, written)

    def _replacement(self, span: Span, seen: str, written: str, position: str) -> str | None:
        if span.label == LITERAL:
            return self.pseudonyms.placeholder(LITERAL, written)
        action: Action | None = action_for(self._redactor.plan.input, span.label)
        if action is None:
            return None
        self.counts[span.label] += 1
        match action:
            case "tag":
                return None
            case "mask":
                return mask(span.label)
            case "hash":
                return keyed_hash(
                    span.label, self._canonical(span, seen, written), require_key(self._redactor._hash_key)
                )
            case "pseudonymise":
                return self.pseudonyms.placeholder(span.label, written, self._canonical(span, seen, written))
            case "block":
                self.blocked.append(Finding(span.label, position))
                return None


def _with_literals(text: str, spans: list[Span], pseudonyms: Pseudonyms) -> list[Span]:
    """Add what looks like a placeholder; where a finding overlaps it, the finding is kept and nothing is restorable."""
    literals = [Span(m.start(), m.end(), LITERAL) for m in PLACEHOLDER.finditer(text)] if "<" in text else []
    own = (
        Span(each.start, each.end, LITERAL) for each in mentions(text, 0, pseudonyms, final=True, own=False).mentions
    )
    literals += [new for new in own if all(new.end <= old.start or old.end <= new.start for old in literals)]
    if not literals:
        return spans
    free = [new for new in literals if all(new.end <= old.start or old.end <= new.start for old in spans)]
    return sorted(spans + free)
