"""Output filter for streamed answers: restores pseudonyms and acts on findings, with the same result for any chunking.

The text is divided into *runs* by rules that depend only on the text. A run is a word together with the following words
into which a grouped number, an IBAN or a key block could continue. No match extends beyond its run, so a run is
processed as soon as the next character shows that it has ended, and everything before it is sent. In ordinary prose one
word is buffered. The maximum is `LONGEST_RUN` characters, or `LONGEST_PEM` for a PEM key block.

A longer run is processed in windows: matches that begin in the first half are final, and the continuation of a match
that reaches the end of the window is dropped. Values that came from the client are never replaced: a restored value
stays.
"""

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from policy.errors import Finding, RedactionBlocked, RedactionError
from policy.redact.actions.actions import keyed_hash, mask, require_key
from policy.redact.actions.placeholder_forms import Mention, may_be_open, search
from policy.redact.actions.plan import action_for
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.detectors.detectors import Detector, Identities, Span, find_spans
from policy.redact.detectors.secrets import (
    NAMES_REACH,
    PEM_BODY,
    PEM_HEAD,
    has_start,
    login_end,
    may_begin,
    value_end,
    values_from,
)
from policy.redact.text.alphabet import LETTER, WORD
from policy.redact.text.json_text import compose, cut_escape, escaped, unescape
from policy.redact.text.normalise import View, lowered, normalise

LONGEST_RUN = 640  # twice the longest e-mail address (RFC 5321: 64 + 1 + 255)
LONGEST_GROUPED = 160  # the limit for a run of several words: an IBAN in groups of four has 42, in groups of one 67
LONGEST_PEM = 16384
CONTEXT = 64

# Repeated groups that must not backtrack are atomic groups: possessive quantifiers match incorrectly before Python
# 3.11.5 (gh-106052), which let text through here. The pattern matches text that no finding can include: spaces and
# punctuation, and plain words once the next character shows that they ended. Group 1 ends where the clear text ends; a
# plain word that is still growing may follow.
_CLEAR = re.compile(
    rf"((?>(?:[^{WORD}<\\]++|[('/]?(?>(?:[{LETTER}]{{1,15}}+(?![{LETTER}])[.'\-]?+)+)[.:)]{{0,3}}+(?=[^{WORD}<\\]))*))"
    rf"(?:[('/]?(?>(?:[{LETTER}]{{1,15}}+[.'\-]?+){{0,8}})[.:)]{{0,3}}+\Z)?"
)
_WORD = re.compile(rf"(?:(?!-)[{WORD}]|-(?!----))+")
_RULE = re.compile(r"-{5,}")  # ends any word, because a key block may begin with it
_REST_OF_TOKEN = re.compile(r"[A-Za-z0-9_.+/=~-]*")
_REST_OF_KEY_BLOCK = re.compile(r"[A-Za-z0-9+/=\s\\-]*")
_ENDS_NUMERIC = re.compile(r"(?:[0-9][A-Za-z]?|[-)/+(.])\Z")
_GOES_ON_NUMERIC = re.compile(r"[0-9()/+]")
_IBAN_SO_FAR = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){0,28}\Z")
_IBAN_GROUP = re.compile(rf"[A-Za-z]{{0,4}}+(?![A-Za-z])[A-Za-z0-9]*+(?![{WORD}])")
_GAP = re.compile(" {1,3}")
_PEM_HEAD_OPEN = re.compile(r"-----(?:B(?:E(?:G(?:I(?:N[A-Z0-9 ]{0,64}-{0,5})?)?)?)?)?")
_PEM_BODY_OPEN = re.compile(
    r"(?:\s|\\[nr]?){0,8}[A-Za-z0-9+/=]*+(?:\s|\\[nr]?){0,8}(?:[A-Za-z-]{0,24}:?|[A-Za-z-]{0,24}: [^\n\"]{0,80}"
    r"|-{0,5}|-----E[A-Z0-9 ]{0,64}-{0,5})"
)
_NUMBER = "-+.eE0123456789"
_UNESCAPED_QUOTE = re.compile(r'\\.|(")', re.DOTALL)


def is_identity(actions: Mapping[Any, Any], pseudonyms: Pseudonyms) -> bool:
    """Return whether a filter of these changes no text."""
    return not actions and not len(pseudonyms)


class StreamFilter:
    """Filters one stream of text: call `feed` with chunks of any size, then `flush` once.

    Attributes:
        counts: findings by label.
        restored: number of placeholders restored.
        is_identity: the filter changes nothing and may be skipped.

    `feed` and `flush` raise RedactionBlocked if the plan blocks a finding, and RedactionError if a detector fails.
    After that, nothing more of this stream may be sent.
    """

    __slots__ = ("_actions", "_context", "_detectors", "_dropping", "_identities", "_in_string", "_json", "_key",
                 "_named", "_pending", "_pseudonyms", "counts", "is_identity", "restored")  # fmt: skip

    def __init__(
        self,
        actions: Mapping[Any, Any],
        detectors: Sequence[Detector],
        pseudonyms: Pseudonyms,
        hash_key: bytes | None,
        identities: Identities,
        *,
        json_escaped: bool,
    ) -> None:
        self._actions = actions
        self._detectors = detectors
        self._pseudonyms = pseudonyms
        self._key = hash_key
        self._identities = identities
        self._json = json_escaped
        self._pending = ""  # original text not yet sent; starts at a run boundary
        self._context = ""  # end of the text already processed, normalised
        self._named = False  # whether part of a secret's name may stand in the end of it that counts
        self._in_string = False
        # Matches the continuation of a match that was longer than its window
        self._dropping: re.Pattern[str] | None = None
        self.counts: dict[str, int] = {}
        self.restored = 0
        self.is_identity = is_identity(actions, pseudonyms)

    def feed(self, piece: str) -> str:
        """Add a chunk and return the text that can be sent now."""
        pending = self._pending + piece if self._pending else piece
        if not (self._dropping or (self._json and ("\\" in pending or '"' in pending))):
            if pending.isascii():
                text: str | None = pending
            else:
                view = normalise(pending)
                text = view.text if view.starts is None else None
            if text is not None and (out := self._plain(pending, text)) is not None:
                return out
        return self._advance(pending, final=False)

    def flush(self, last: str = "") -> str:
        """Return the remaining text at the end of the stream. ``last``: a final chunk, processed as if fed before."""
        return self._advance(self._pending + last, final=True)

    def rest(self) -> str:
        """Return what `flush` would return now. The filter is not changed and can be fed further."""
        if not self._pending:
            return ""
        twin = copy(self)
        twin.counts = {}
        return twin.flush()

    def _plain(self, pending: str, text: str) -> str | None:
        """Process plain words with one match, the common case. Returns None if the text needs `_advance`."""
        base = len(self._context)
        if not self._detectors:
            if self._pseudonyms.nonce in lowered(text):
                return None
            seen = self._context + text
            end = may_be_open(seen, base, self._pseudonyms) - base
        else:
            clear = _CLEAR.fullmatch(text)
            if clear is None:
                return None
            seen = self._context + text
            if self._named or may_begin(seen, base):
                if values_from(seen, base):
                    return None
                self._named = has_start(seen[base - NAMES_REACH if base > NAMES_REACH else 0 :])
            end = clear.end(1)
            # `EMAIL 1 k7f3`, `&lt;EMAIL_1_k7f3`: every other form is one growing word
            if text[-1:].isspace() or "&" in text:
                end = min(end, may_be_open(seen, base, self._pseudonyms) - base)
        self._pending = pending[end:]
        self._context = seen[: base + end][-CONTEXT:]
        return pending[:end]

    def _advance(self, pending: str, *, final: bool) -> str:
        whole = len(pending) if final or not self._json else cut_escape(pending)
        view = self._view(pending[:whole])
        base = len(self._context)
        text = self._context + view.text
        edits = _Edits(pending, whole, view, base)
        at = base
        placeholders, open_at = self._placeholders(text, base, final=final)
        values = deque(values_from(text, base) if self._detectors else ())
        while at < len(text):
            if self._dropping:
                at = self._drop(self._dropping, text, at, edits)
                continue
            while placeholders and placeholders[0].start < at:
                placeholders.popleft()
            next_one = placeholders[0].start if placeholders else open_at
            while values and values[0] < at:
                values.popleft()
            at, growing = self._clear_end(text, at, values[0] + 1 if values else len(text))
            if values and values[0] <= min(at, next_one):
                at, growing = values[0], False
            if next_one <= at and next_one < len(text):
                at = next_one
                if not placeholders:
                    break
                at = self._restore(placeholders[0], edits)
                continue
            if at == len(text) or (growing and not final):
                break
            if text[at] in "<\\":
                at += 1
                continue
            run = _run_with_values(text, at, values, final=final)
            if next_one < run.end:
                if not placeholders:
                    break
                run = _Run(next_one, False)
            if run.is_open:
                break
            at = self._judge(text, at, run, edits)
        if self._json:
            self._inside_string(edits, at)
        out = edits.result(at)
        self._pending = pending[edits.written_at(at) :]
        self._context, self._named = text[:at][-CONTEXT:], True
        return out

    def _view(self, pending: str) -> View:
        if not self._json:
            return normalise(pending)
        outer = unescape(pending)
        return compose(outer, normalise(outer.text))

    def _clear_end(self, text: str, at: int, stop: int) -> tuple[int, bool]:
        """Return where text that must be examined begins, at most `stop`.

        Also returns whether only a plain word that may still grow follows.
        """
        if not self._detectors:
            return len(text), False
        clear = _CLEAR.match(text, at, stop)
        if clear is None:
            return at, False
        return clear.end(1), clear.end() == len(text) > clear.end(1)

    def _drop(self, rest: re.Pattern[str], text: str, at: int, edits: "_Edits") -> int:
        match = rest.match(text, at)
        end = match.end() if match else at
        if end > at:
            edits.replace(at, end, "")
        if end < len(text):
            self._dropping = None
        return end

    def _placeholders(self, text: str, start: int, *, final: bool) -> tuple[deque[Mention], int]:
        """Return this request's placeholders in ``text[start:]``, and where an incomplete one may begin."""
        if not len(self._pseudonyms):
            return deque(), len(text)
        found = search(text, start, self._pseudonyms, final=final)
        return deque(found.mentions), found.open_at

    def _restore(self, mention: Mention, edits: "_Edits") -> int:
        restored = mention.encode(self._pseudonyms.value(mention.number, mention.word) or "") + mention.ending
        edits.replace(mention.start, mention.end, escaped(restored) if self._json else restored)
        self.restored += 1
        return mention.end

    def _judge(self, text: str, at: int, run: "_Run", edits: "_Edits") -> int:
        """Apply the plan to the findings in `run`. Returns where the next run begins."""
        until = at + (run.end - at) // 2 if run.rest else run.end
        base = max(0, at - CONTEXT)
        seen = text[base : run.end]
        for span in find_spans(seen, at - base, self._detectors):
            start, end = span.start + base, span.end + base
            if start >= until:
                break
            if (replacement := self._replacement(span, start, end, seen, edits)) is not None:
                if self._json and not self._inside_string(edits, start):
                    start, end = _whole_number(text, at, start, end, run.end)
                    replacement = f'"{replacement}"'
                edits.replace(start, end, replacement)
                self._dropping = run.rest if end == run.end else None
            until = max(until, end)
        return edits.between_characters(until, at)

    def _replacement(self, span: Span, start: int, end: int, text: str, edits: "_Edits") -> str | None:
        action = action_for(self._actions, span.label)
        if action is None:
            return None
        self.counts[span.label] = self.counts.get(span.label, 0) + 1
        match action:
            case "tag":
                return None
            case "mask":
                return mask(span.label)
            case "hash":
                written = edits.written(start, end)
                written = unescape(written).text if self._json else written
                canonical = self._identities.canonical(span.label, text[span.start : span.end], written)
                return keyed_hash(span.label, canonical, require_key(self._key))
            case "block":
                raise RedactionBlocked(Finding(span.label, "the answer"))
            case _:
                raise RedactionError(f"answers do not support the action {action}")

    def _inside_string(self, edits: "_Edits", at: int) -> bool:
        """Return whether `at` is inside a JSON string. Each original character is scanned once."""
        self._in_string ^= edits.quotes_before(at) % 2 == 1
        return self._in_string


class _Edits:
    """Replacements in the original text, addressed by offsets in the text that detectors see."""

    __slots__ = ("_base", "_counted", "_pending", "_pieces", "_sent", "_view", "_whole")

    def __init__(self, pending: str, whole: int, view: View, base: int) -> None:
        self._pending = pending
        self._pieces: list[str] = []
        self._whole, self._view, self._base = whole, view, base
        self._sent = self._counted = 0

    def written_at(self, at: int) -> int:
        """Return the offset in the original text of offset `at`."""
        return self._view.start(at - self._base, self._whole)

    def between_characters(self, at: int, least: int) -> int:
        """Return `at`, moved to a boundary of original characters.

        If one original character spans `at`, the result is the offset before it, unless it was replaced or starts at
        `least` or earlier; then the offset after it.
        """
        starts, base = self._view.starts, self._base
        if starts is None or not 0 < at - base < len(starts) or starts[at - base] != starts[at - base - 1]:
            return at
        written = starts[at - base]
        first, last = bisect_left(starts, written) + base, bisect_right(starts, written) + base
        return first if first > least and written >= self._sent else last

    def replace(self, start: int, end: int, replacement: str) -> None:
        """Replace what detectors see at ``[start:end]``."""
        first, last = self._view.span(start - self._base, end - self._base)
        self._pieces += self._pending[self._sent : first], replacement
        self._sent = last

    def written(self, start: int, end: int) -> str:
        """Return the original text of what detectors see at ``[start:end]``."""
        first, last = self._view.span(start - self._base, end - self._base)
        return self._pending[first:last]

    def quotes_before(self, at: int) -> int:
        """Count unescaped quotes in the original text between the previous call's offset and this one."""
        start, self._counted = self._counted, self.written_at(at)
        return _quotes(self._pending[start : self._counted])

    def result(self, at: int) -> str:
        """Return the edited text up to `at`."""
        self._pieces.append(self._pending[self._sent : self.written_at(at)])
        return "".join(self._pieces)


class _Run(NamedTuple):
    """A run of text that no match crosses.

    Attributes:
        end: offset of its end.
        is_open: whether following text may still lengthen or change it.
        rest: pattern of the continuation of a match at the end, if this is only a window of a longer run.
    """

    end: int
    is_open: bool
    rest: re.Pattern[str] | None = None


def _run(text: str, at: int, *, final: bool) -> _Run:
    """Return the run that begins at `at`, where a `WORD` character stands."""
    if rule := _RULE.match(text, at):
        begin = rule.end() - 5
        if rule.end() == len(text) and not final:
            return _Run(begin, False) if begin > at else _Run(rule.end(), True)
        return _pem_run(text, begin, final=final) or _Run(rule.end(), False)
    end = _word_end(text, at)
    is_open = False
    while not is_open and end - at < LONGEST_GROUPED:
        step = _next_word_end(text, at, end, final=final)
        if step is None:
            break
        is_open = step == end
        end = step
    end = login_end(text, at, end)
    is_open = is_open or (end == len(text) and not final)
    longest = LONGEST_GROUPED if text.find(" ", at, min(end, at + LONGEST_GROUPED)) >= 0 else LONGEST_RUN
    settled = len(text[at:end].rstrip("-")) if is_open else end - at  # dashes at the end may become a rule
    if settled >= longest:
        return _Run(at + longest, False, _REST_OF_TOKEN)
    return _Run(end, is_open)


def _run_with_values(text: str, at: int, values: Iterable[int], *, final: bool) -> _Run:
    """Return the run that begins at `at`, extended to the end of every value that begins inside it."""
    run = _run(text, at, final=final)
    for start in values:
        if start >= run.end:
            break
        run = _value_run(text, start, run, final=final)
    return run


def _value_run(text: str, at: int, run: _Run, *, final: bool) -> _Run:
    """Extend `run` to the end of the named value that begins at `at`, whatever characters that value contains."""
    end = value_end(text, at)
    return run if end < run.end or run.rest else _Run(end, run.is_open or (end == len(text) and not final))


def _next_word_end(text: str, at: int, end: int, *, final: bool) -> int | None:
    """Return the end of the run with one more word; `end` itself if undecided; None if the run ends here."""
    if end == len(text):
        return None if final else end
    gap = _GAP.match(text, end)
    if gap is None:
        return None
    following = gap.end()
    numeric = _ENDS_NUMERIC.search(text, max(at, end - 2), end) is not None
    iban = _IBAN_SO_FAR.search(text, max(at, end - 48), end) is not None
    if not numeric and not iban:
        return None
    if following == len(text):
        return None if final else end
    if numeric and text[following] == "-":  # one hyphen is a separator, several begin a key block or a rule
        if following + 1 == len(text):
            return None if final else end
        return None if text[following + 1] == "-" else _word_end(text, following)
    if numeric and _GOES_ON_NUMERIC.match(text, following):
        return _word_end(text, following)
    if iban and (group := _IBAN_GROUP.match(text, following)) and group.end() > following:
        return end if group.end() == len(text) and not final else group.end()
    return None


def _word_end(text: str, at: int) -> int:
    word = _WORD.match(text, at, at + LONGEST_RUN + 8)
    return word.end() if word else at + 1


def _pem_run(text: str, at: int, *, final: bool) -> _Run | None:
    head = PEM_HEAD.match(text, at)
    if head is None:
        return _Run(len(text), True) if not final and _PEM_HEAD_OPEN.fullmatch(text, at) else None
    limit = at + LONGEST_PEM
    body = PEM_BODY.match(text, head.end(), limit)
    end = body.end() if body else head.end()
    if (body and body["end"]) or not _PEM_BODY_OPEN.fullmatch(text, end, limit):
        return _Run(end, False)
    if len(text) >= limit:
        return _Run(end, False, _REST_OF_KEY_BLOCK)
    return _Run(end, not final)


def _whole_number(text: str, first: int, start: int, end: int, last: int) -> tuple[int, int]:
    """Extend a match outside JSON strings to the number that contains it."""
    while start > first and text[start - 1] in _NUMBER:
        start -= 1
    while end < last and text[end] in _NUMBER:
        end += 1
    return start, end


def _quotes(text: str) -> int:
    return sum(1 for match in _UNESCAPED_QUOTE.finditer(text) if match[1]) if '"' in text else 0
