"""The redactor of one policy: compiled once, then used for all requests and answers under that policy."""

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
from policy.redact.stream import StreamFilter, is_identity
from policy.redact.text import json_text
from policy.redact.text.json_text import as_read

_ROLES = frozenset({"assistant", "developer", "function", "system", "tool", "user"})
MAX_CHARACTERS = 4_000_000  # per request; longer ones would take seconds of CPU and delay others
NamesByText = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class RedactedBody:
    """Result of redacting a request body.

    Attributes:
        body: the body that may be sent.
        changed: whether it differs from the original.
        counts: findings by label.
        pseudonyms: placeholders and values, from which `StreamFilter` restores.
    """

    body: dict[str, Any]
    changed: bool
    counts: Mapping[str, int]
    pseudonyms: Pseudonyms


class Redactor:
    """Applies one redaction plan. Holds no state of a request, so threads and tasks can share it.

    Args:
        plan: labels to find and actions to take, for prompts and for answers.
        hash_key: the tenant's key; required if the plan hashes.
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
        """The tenant's key. Together with the plan, it is all that another process needs to build this redactor."""
        return self._hash_key

    def is_clean(self, role: str) -> bool:
        """Return whether nothing is found in the role name of a message.

        Use it only for role names: results are cached without bound.
        """
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
        """Return every distinct string of a request as detectors read it, to search for names.

        Raises as `redact_body`.
        """
        texts: dict[str, None] = {}

        def collect(text: str, position: str, *, escaped: bool = False) -> str:
            texts[as_read(text).text] = None
            return text

        rewrite_body(self._whole(body, layout), layout, collect)
        return tuple(texts)

    def _whole(self, body: dict[str, Any], layout: BodyLayout) -> dict[str, Any]:
        """Return the body with values that are split over parts or messages joined."""
        return with_whole_values(body, self._input) if "messages" in layout.prompts else body

    def conversation(self, name: str) -> tuple[str, bytes] | None:
        """Return the nonce and key shared by all requests of a conversation; None if the tenant has no key."""
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

        Args:
            body: the parsed request.
            layout: fields of the route.
            nonce: unique to this request, see `pseudonyms.nonce_from`; with a `key`, unique to one conversation, see
                `conversation`.
            names: spans of person names for each of `texts`; required if `looks_for_names`. A missing text is an error.
            key: key of the conversation.

        Raises RedactionBlocked if the plan blocks a finding or a part cannot be inspected, and RedactionError for any
        other failure. In both cases the request must be denied.
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
        except Exception as error:  # after any error the body is not known to be clean
            raise RedactionError(f"redaction failed with {type(error).__name__}") from None
        if run.blocked:
            raise RedactionBlocked(*run.blocked)
        return RedactedBody(
            redacted if run.changed else body, run.changed, MappingProxyType(run.counts), run.pseudonyms
        )

    def stream_filter(self, pseudonyms: Pseudonyms, *, json_escaped: bool = False) -> StreamFilter:
        """Return a filter for the text of one choice or, if ``json_escaped``, for the arguments of one tool call."""
        return StreamFilter(
            self.plan.output, self._output, pseudonyms, self._hash_key, self._identities, json_escaped=json_escaped
        )

    def leaves_answers(self, pseudonyms: Pseudonyms) -> bool:
        """Return whether `stream_filter` would change no text."""
        return is_identity(self.plan.output, pseudonyms)

    def restore_text(self, text: str, pseudonyms: Pseudonyms, *, json_escaped: bool = False) -> str:
        """Filter a complete answer. The result is the same as streaming it in any chunks."""
        return self.stream_filter(pseudonyms, json_escaped=json_escaped).flush(text)


def _needed(detectors: Sequence[Detector], actions: Mapping[Any, Any]) -> tuple[Detector, ...]:
    """Return the detectors of the planned labels and all before them, which claim spans that these would mistake."""
    named = {general_label(label) for label in actions}
    last = max((index for index, d in enumerate(detectors) if d.label in named), default=-1)
    return tuple(detectors[: last + 1])


class _Run:
    """State of one request during redaction."""

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
        """Return `text` redacted; see `policy.redact.request.Rewrite`."""
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
        """Add findings inside base64. If one encoded text has several, keep the one with the strictest action."""
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
    """Add spans of text that looks like a placeholder.

    A finding that overlaps one takes precedence; that text is then not restored.
    """
    literals = [Span(m.start(), m.end(), LITERAL) for m in PLACEHOLDER.finditer(text)] if "<" in text else []
    own = (
        Span(each.start, each.end, LITERAL) for each in mentions(text, 0, pseudonyms, final=True, own=False).mentions
    )
    literals += [new for new in own if all(new.end <= old.start or old.end <= new.start for old in literals)]
    if not literals:
        return spans
    free = [new for new in literals if all(new.end <= old.start or old.end <= new.start for old in spans)]
    return sorted(spans + free)
