"""Detectors of personal data and secrets in normalised text.

Each detector matches a pattern, then verifies it (check digits, numbering plans). It takes a text and a start offset
and yields spans; characters before the offset are context only. Detectors run in the order of `DETECTORS`. Overlapping
spans are merged under the label of the earlier detector, so no part of any finding is left.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import compress
from operator import itemgetter, ne
from types import MappingProxyType
from typing import NamedTuple

from policy.errors import RedactionError
from policy.redact.addresses.addresses import find_addresses
from policy.redact.contacts.hosts import find_ips
from policy.redact.contacts.phone import compile_plans, find_phones
from policy.redact.detectors import births, devices, plates
from policy.redact.detectors.births import find_births
from policy.redact.detectors.devices import find_imeis, find_macs
from policy.redact.detectors.national_ids import find_national_ids
from policy.redact.detectors.plates import find_plates
from policy.redact.detectors.secrets import find_secrets
from policy.redact.ids.kinds import IDS
from policy.redact.payment import card_details
from policy.redact.payment.bic import find_bics
from policy.redact.payment.card_details import EXPIRY, VERIFICATION, find_card_details
from policy.redact.payment.iban import find_ibans, load_structures
from policy.redact.payment.payment_cards import find_cards
from policy.redact.payment.vat import find_vat_numbers, load_checks
from policy.redact.text.alphabet import ALNUM, LETTER
from policy.redact.text.reading import Reading, Spans
from policy.redact.text.value_identity import EXACT, MAIL, NUMBER, Identity

Finder = Callable[[str, int], Iterable[tuple[int, int] | tuple[int, int, str]]]


class Detector(NamedTuple):
    """A detector and its properties.

    Attributes:
        label: label of its findings.
        find: yields (start, end) or (start, end, kind).
        needs_digits: finds nothing in a text without digit-rich spans, and is skipped there.
        reads_through: searches Latin text, so Cyrillic and Greek look-alike letters are read as Latin.
        initials: if not empty, finds nothing in a text without digits or without a word that begins with one of these
            (see `Reading.initials`), and is skipped there.
        identity: when two spellings of a finding are one value.
        kinds: identities by kind, for kinds that have their own.
    """

    label: str
    find: Finder
    needs_digits: bool = False
    reads_through: bool = False
    initials: frozenset[str] = frozenset()
    identity: Identity = EXACT
    kinds: Mapping[str, Identity] = MappingProxyType({})


class Span(NamedTuple):
    """A finding at ``text[start:end]``. ``label``: the detector's label, with the kind after a dot if known."""

    start: int
    end: int
    label: str


_LOCAL = rf"{ALNUM}_.%+'\-"
_LOCAL_BEFORE = re.compile(rf"(?<![{_LOCAL}])[{_LOCAL}]++\Z")
_LOCAL_MAX = 64
_DOMAIN = re.compile(
    rf"@(?:[{ALNUM}](?:[{ALNUM}_-]{{0,61}}[{ALNUM}])?\.){{1,8}}(?:[{LETTER}]{{2,24}}|xn--[a-z0-9-]{{2,59}})"
    rf"(?![{ALNUM}@(]|-[{ALNUM}])"
)
# `alice (at) example [dot] org`. Without brackets, `at` is an ordinary word.
_SPELT_AT = re.compile(r"[\[({] ?(?:at|ät|arroba|chez|@) ?[\])}] ?(?=[A-Za-z0-9])", re.IGNORECASE)
_SPELT_DOT = r"(?:\.| ?[\[({] ?(?:dot|punkt|point|punto|\.) ?[\])}] ?)"
_SPELT_DOMAIN = re.compile(
    rf"[{ALNUM}-]{{1,63}}(?:{_SPELT_DOT}[{ALNUM}-]{{1,63}}){{1,4}}(?<=[{LETTER}]{{2}})", re.IGNORECASE
)
_CONTEXT = 96
_PROVEN = frozenset({"secret", "email", "iban", "card", "national_id"})
# Five digits close together, or a document number, which may consist mostly of letters.
# Quick test that matches most digit-rich texts
_FIVE_DIGITS = re.compile("[0-9](?:[0-9]{4}|" + "[^0-9\n]{0,8}[0-9]" * 4 + ")")
_DIGIT = re.compile("[0-9]")
_DIGIT_RICH = re.compile(
    r"[0-9OIl](?:[^0-9\n]{0,8}[0-9OIl]){4}|[0-9](?![A-Za-z0-9])(?:(?<=[A-Za-z][A-Za-z0-9]{8})|(?<=[A-Za-z][A-Za-z0-9]{9}))"
)


def find_emails(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of e-mail addresses (RFC 5321) with a dotted domain from `start` on.

    The search extends outwards from each `@`, so it is linear in the text.
    """
    at = text.find("@", start)
    while at >= 0:
        if domain := _DOMAIN.match(text, at):
            local = _LOCAL_BEFORE.search(text[max(start, at - _LOCAL_MAX) : at])
            length = len(local[0].rpartition("--")[2].lstrip(".'-%+")) if local else 0
            if length:
                yield at - length, domain.end()
        at = text.find("@", at + 1)
    yield from _spelt_emails(text, start)


def _spelt_emails(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield addresses whose `@` is obfuscated in brackets: `alice (at) example.org`."""
    for at in _SPELT_AT.finditer(text, start):
        first = at.start() - (text[at.start() - 1 : at.start()] == " ")
        local = _LOCAL_BEFORE.search(text[max(start, first - _LOCAL_MAX) : max(start, first)])
        domain = _SPELT_DOMAIN.match(text, at.end())
        length = len(local[0].lstrip(".'-%+")) if local else 0
        if length and domain:
            yield first - length, domain.end()


_ID_IDENTITIES = MappingProxyType({kind: each.identity for kind, each in IDS.items()})

DETECTORS: tuple[Detector, ...] = (
    Detector("secret", find_secrets, reads_through=True),
    Detector("email", find_emails, identity=MAIL),
    Detector("iban", find_ibans, needs_digits=True, reads_through=True, identity=NUMBER),
    Detector("card", find_cards, needs_digits=True, identity=NUMBER),
    Detector("card", find_card_details, initials=card_details.INITIALS, kinds={VERIFICATION: EXACT, EXPIRY: EXACT}),
    Detector("vat", find_vat_numbers, needs_digits=True, reads_through=True, identity=NUMBER),
    Detector("imei", find_imeis, needs_digits=True, initials=devices.INITIALS, identity=NUMBER),
    Detector("national_id", find_national_ids, needs_digits=True, identity=NUMBER, kinds=_ID_IDENTITIES),
    Detector("phone", find_phones, needs_digits=True, identity=NUMBER),
    Detector("mac", find_macs, identity=NUMBER),
    Detector("ip", find_ips),
    Detector("date_of_birth", find_births, initials=births.INITIALS),
    Detector("bic", find_bics),
    Detector("plate", find_plates, initials=plates.INITIALS),
    Detector("address", find_addresses),
)


class Identities:
    """Identity rules by label of `detectors`; `EXACT` for other labels."""

    __slots__ = ("_by_label",)

    def __init__(self, detectors: Iterable[Detector]) -> None:
        self._by_label: dict[str, Identity] = {}
        for detector in detectors:
            self._by_label.setdefault(detector.label, detector.identity)
            self._by_label.update({f"{detector.label}.{kind}": each for kind, each in detector.kinds.items()})

    def canonical(self, label: str, seen: str, written: str) -> str:
        """Return the text that all spellings of a value share.

        ``seen``: the value as detectors read it. ``written``: the value in the original text.
        """
        identity = self._by_label.get(label) or self._by_label.get(_first(label), EXACT)
        return identity.reduce(seen, written)


@cache
def warm() -> None:
    """Load and compile what detectors would otherwise load with the first text that needs it.

    The first caller then does not have to wait.
    """
    compile_plans()
    load_structures()
    load_checks()


def find_spans(text: str, start: int, detectors: Sequence[Detector]) -> list[Span]:
    """Return disjoint spans from `start` on, in order.

    Raises RedactionError, without the text, if a detector fails.
    """
    reading = Reading(text)
    has_digits = (_FIVE_DIGITS.search(text, start) or _DIGIT_RICH.search(text, start)) is not None
    found = _run(reading, start, detectors, has_digits=has_digits)
    if has_digits and (plain := reading.with_plain_digits) is not None:
        numeric = [each for each in detectors if each.needs_digits]
        for first, last in _around_changes(reading, plain, start, found):
            again = _run(Reading(plain[first:last]), max(0, start - first), numeric, has_digits=True)
            moved = (Span(span.start + first, span.end + first, span.label) for span in again)
            found += [span for span in moved if plain[span.start : span.end] != reading[span.start : span.end]]
    if len(found) < 2:
        return found
    return _merged(found, detectors)


def _around_changes(text: str, changed: str, start: int, found: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield spans of the text, with context, around positions from `start` on at which the two texts differ.

    Differences inside a verified finding are ignored: that text was read correctly.
    """
    known = Spans((span.start, span.end) for span in found if _first(span.label) in _PROVEN)
    first = last = -1
    for at in compress(range(start, len(text)), map(ne, text[start:], changed[start:])):
        if known.covers(at, at + 1):
            continue
        if last >= 0 and at - last > 2 * _CONTEXT:
            yield max(0, first - _CONTEXT), last + _CONTEXT
            first = at
        elif first < 0:
            first = at
        last = at
    if last >= 0:
        yield max(0, first - _CONTEXT), last + _CONTEXT


def _run(reading: Reading, start: int, detectors: Iterable[Detector], *, has_digits: bool) -> list[Span]:
    found: list[Span] = []
    label = ""
    has_a_digit = has_digits or _DIGIT.search(reading) is not None
    try:
        for label, find, needs_digits, reads_through, initials, _, _ in detectors:
            if needs_digits and not has_digits:
                continue
            if initials and (not has_a_digit or initials.isdisjoint(reading.initials)):
                continue
            before = len(found)
            for first, last, *kind in find(reading.latin if reads_through else reading, start):
                found.append(Span(first, last, f"{label}.{kind[0]}" if kind else label))
            if len(found) > before:
                reading.taken += found[before:]
    except Exception as error:  # after any error the text is not known to be clean
        raise RedactionError(f"detector {label} failed with {type(error).__name__}") from None
    return found


def _merged(spans: list[Span], detectors: Sequence[Detector]) -> list[Span]:
    merged: list[Span] = []
    order: dict[str, int] = {}
    for span in sorted(spans, key=itemgetter(0)):  # stable: of two that begin together, the first found
        if merged and span.start < merged[-1].end:
            order = order or {each.label: index for index, each in enumerate(detectors)}
            last = merged[-1]
            ranks = order[_first(span.label)], order[_first(last.label)]
            is_longer = ranks[0] == ranks[1] and span.end - span.start > last.end - last.start
            label = span.label if ranks[0] < ranks[1] or is_longer else last.label
            merged[-1] = Span(last.start, max(last.end, span.end), label)
        else:
            merged.append(span)
    return merged


def _first(label: str) -> str:
    return label.partition(".")[0]
