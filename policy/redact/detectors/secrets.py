"""Secrets recognised by their format or name.

These are keys in their vendor's format (`secret_formats`), JSON Web Tokens (RFC 7519), private keys (RFC 7468), log-ins
in URLs, and random values next to a word such as `password`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

import re2  # type: ignore[import-untyped]

from policy.redact.detectors.secret_formats import INSIDE, PREFIXED
from policy.redact.text.alphabet import WORD
from policy.redact.text.normalise import LOOK_ALIKES, contains_any, lowered

PEM_PREFIX = "-----BEGIN"

# Prefixes by the first two characters of their first word, because most texts have no such word.
_BY_HEAD: dict[str, list[str]] = {}
for _prefix in PREFIXED:
    _BY_HEAD.setdefault(re.split("[^A-Za-z0-9_]", _prefix, maxsplit=1)[0][:2], []).append(_prefix)

_MAYBE_LETTERS = ("glpat-", "AIza", "hvs.", "SG.")  # keys that may consist only of letters, without an underscore

_LONG = re.compile(r"[A-Za-z0-9_./+=$:-]{16,}")  # shorter tokens are not keys
_DIGIT, _LETTER = re.compile("[0-9]"), re.compile("[A-Za-z]")
_IN_WORD, _WORDS = re.compile("[A-Za-z0-9_]"), re.compile("[A-Za-z0-9_]+")
_LONGEST_INSIDE = 160
_URL = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'<>]{0,64}:[^\s/\"'<>]{1,128}@(?=[A-Za-z0-9\[_-])"
    rf"[{WORD}\[\]]{{1,256}}(?<![.:)='\]])"
)
_PAROLA = "парола".translate(LOOK_ALIKES)  # as in `Reading.latin`
_JOINTS = "is|ist|lautet|est|es|è|é|jest|to|je|on|är|er|este|yra|ir|huwa"
_NAME = (
    r"(?:pass(?:word|wd|wort|phrase|code)?|pwd|secret|token|(?:api|access|private|account|shared|auth|encryption|secret"
    r"|signing|service|app|subscription|license|client|webhook|deploy|master|pre-?shared|wi-?fi|wlan|wpa[23]?"
    r"|network security)[_ -]?key|(?<![a-z])psk|credentials?"
    r"|authorization[\"']?\s{0,2}[:=]\s{0,2}[\"']?(?:basic|bearer|token|apikey)|bearer|contrase[nñ]a|(?:mots?"
    r"|phrases?) de passe|frases? (?:de paso|de acceso|de contraseña|de recuperaci[oó]n|secreta|segreta|d[’']accesso)"
    r"|frase-passe|mdp|codes? (?:secrets?|confidentiels?|d['’]acc[eè]s)|codice (?:segreto|(?:di|d['’]) ?accesso)"
    r"|c[oó]digo (?:secreto|de aces+o|de acceso)|cl(?:é|e|ef) (?:d['’]api|wi-?fi|wpa[23]?|api|secr[eè]te|priv[ée]e"
    r"|d['’]acc[eè]s)|jeton|kennwort|zugangs?(?:code|schlüssel|kennung)|(?:api|geheim|wlan|wi-?fi|wpa[23]?"
    r"|netzwerk)[ -]?schlüssel"
    r"|clave(?: (?:de acceso|api|secreta|privada))?|chiave (?:api|wi-?fi|wpa[23]?|di rete|segreta|privata)|chave (?:api"
    r"|secreta|privada)|toegangscode|(?:api|geheime?)[ -]?sleutel|(?:api|hemlig)[ -]?nyckel|klucz (?:api|prywatny"
    r"|dost[eę]pu)"
    r"|wachtwoord|has[lł]o|senha|l[öo]senord|adgangskode|passord|salasana|heslo|jelsz[óo]"
    r"|parol[aeăĕ]?|lozinka|geslo|slapta[žz]odis|parool|lykilor[ðd]|aðgangsorð|palavra-passe|focal faire"
    r"|κωδικ[όο]ς(?: πρόσβασης)?|парола|" + _PAROLA + r")"
    r"(?:(?:[\"'`]?\]?\)?|(?:(?:[ ’']|[ -](?=[a-z]))[^\W\d_]{1,14}){1,3}(?=\s{0,2}[:=]))\s{0,2}(?::=|=>|[:=>]|\b(?:"
    + _JOINTS.replace("|to|", r"|(?<!pass )(?<!secret )(?<!token )(?<!key )(?<!word )to|")  # "the token to use"
    + r")\b)\s{0,2}"
    r"|(?<=bearer) |(?<=basic) |(?P<bare>(?<=password) |(?<=token) ))"
)
# Characters of a value. A quote or a backslash is part of it if the value continues after it.
_PLAIN = r"[^\s\"'`<>,;|\\]"
_INNER_QUOTE = r"(?:''|\"\"|[\"'`\\])"  # doubled, as SQL and CSV write one inside a value
_GOES_ON = _INNER_QUOTE + r"(?=[^\s\"'`<>,;|\\}\])(:=/])"
_NO_CODE = r"(?![\"'`]{0,2}(?:\$[a-z_{(]|[a-z_.]{3,}[(\[{]|(?:[a-z_]\w{2,}\.)+\w{2,}[(\[{]))"  # a variable, a call
_NAMED = re.compile(
    _NAME
    + rf"(?:[\"'`](?P<quoted>{_NO_CODE}(?:[^\s\"'`<>]|{_GOES_ON}){{6,255}})(?=[\"'`](?![A-Za-z0-9]))"
    + rf"|[\"'`]?(?P<value>{_NO_CODE}(?:{_PLAIN}|{_GOES_ON}){{5,255}}[^\s\"'`<>,;(){{}}\[\]|\\.:]))"
)
_JOINT_REACH = 16
"""Maximum length from the word that joins a name to its value (`lautet`, `password `) to the value.

2 + 9 characters with spaces and quotes.
"""
_JOINT_WORD = re.compile(r"[^\W_]+")
_SHORT = 8  # characters; a shorter value counts only after the name of a password
_PASSWORD_NAME = re.compile(
    r"pass|pwd|kennwort|contrase|mdp|wachtwoord|has[lł]o|senha|senord|lösenord|adgangskode|salasana|heslo|jelsz|parol"
    r"|lozinka|geslo|slapta"
    r"|zugang|toegang|code |codes |codice|c[oó]digo|clave(?! p[uú]blica)"
)
_CLOSING = {")": "(", "]": "[", "}": "{"}
_OBJECT = re.compile(
    r"(?:[A-Za-z_][\w$]*(?:\.|::|->))+[A-Za-z_][\w$]*(?:@[0-9a-f]{1,8})?"
)  # `android.os.BinderProxy@2bd79ce`
_PLACE = re.compile(
    r"arn:aws[a-z-]{0,8}:[\w:/*.-]+|//[A-Za-z][\w.-]*(?::[0-9]{1,5})?/[\w./-]*"
)  # `docker://localhost:5000/image`
_RESULT, _FEW_RESULTS = re.compile(r"^(?:PASS|X?FAIL|XPASS|SKIP|UNTESTED|UNSUPPORTED): ", re.MULTILINE), 2  # of tests
# Command options: `mysql -p'…'`, `sshpass -p …`, `curl -u name:…`. In other programs, `-p` is a port or a path.
_OPTION_NAME = (
    r"(?<![^\s])(?:-p(?=['\"])|(?:sshpass|mysql\w*|mariadb\w*|docker login|podman login|redis-cli|mongo\w*|smbclient"
    r"|htpasswd)"
    r"(?: [^\s|;&]{1,16}){0,4} (?:-p|-a|--pass) ?|(?:curl|wget|http) (?:[^\s|;&]{1,12} ){0,3}(?:-u"
    r"|--user)[ =]?['\"]?[^\s:'\"/]{1,16}:)"
    r"['\"]?"
)
_OPTION = re.compile(_OPTION_NAME + r"(?P<value>[^\s'\"`<>|]{7,80}[^\s'\"`<>|,;.)])")
_OPTIONS = (" -p", "-p'", '-p"', " -a ", " -u", "--user", "--pass")
# Every name contains one of these; most texts contain none.
_STEMS = ("pass", "mdp", "code secret", "codes secret", "confidentiel", "d'acc", "d’acc", "codice", "digo secreto",
"digo de ace", "digo de acc", "clé", "cle ", "clef ", "jeton", "zugang", "schlüssel", "clave", "chiave", "chave",
"toegangscode", "sleutel", "nyckel", "klucz", "pwd", "secret", "token", "key", "credential", "bearer", "authoriz",
"contrase", "psk", "kennwort", "wachtwoord", "hasl",
          "hasł", "senha", "senord", "adgangskode", "salasana", "heslo", "jelsz", "parol", "lozinka", "geslo", "slapta",
          "parool", "lykilor", "aðgangsor", "palavra-passe", "focal faire", "κωδικ", "парола", _PAROLA)  # fmt: skip
_JOINT_WORDS = frozenset(_JOINTS.split("|"))
_STEM = re2.compile("|".join(_STEMS))
# RE2's word boundary is defined for ASCII letters only, so other words are matched without it.
_JOINED = re2.compile(
    f"(?s)(?:{'|'.join(_STEMS)}).*?(?:[:=>]|"
    + "|".join(rf"\b{word}\b" if word.isascii() else word for word in sorted(_JOINT_WORDS))
    + ")|(?:bearer|basic|password|token) "
)
"""Matches part of a secret's name, followed by something that joins it to a value.

Uses RE2 because Python's engine tries every word at every position: 240 us per 1,000 characters instead of 8.
"""
_STARTS = (*_STEMS, "basic ")
_AFTER_LETTER: dict[str, list[str]] = {}
for _start in _STARTS:
    _AFTER_LETTER.setdefault(_start[0], []).append(re.escape(_start[1:]))
_START = re.compile("|".join(f"{letter}(?:{'|'.join(rests)})" for letter, rests in _AFTER_LETTER.items()))
LONGEST_START = max(map(len, _STARTS))
_SHORT_TEXT = 500
"""Characters below which a look for each of `_STARTS` costs less than a search by RE2."""
_JOINT = re.compile(rf"[:=>]|\b(?:{_JOINTS})\b|(?:bearer|basic|password|token) ")
NAMES_REACH = 48
"""Characters before a value in which its name begins."""
# Values contain more than word characters, so a stream must know where one begins and ends.
_VALUE_NEXT = re.compile(_NAME + r"[\"'`]{0,2}(?=[^\s\"'`<>,;|\\])")
_OPTION_NEXT = re.compile(_OPTION_NAME + r"(?=[^\s'\"`<>|])")
_MAY_GO_ON = _INNER_QUOTE + r"(?:(?=[^\s\"'`<>,;|\\}\])(:=/])|\Z)"  # a stream cannot decide this yet
_VALUE = re.compile(rf"(?:{_PLAIN}|{_MAY_GO_ON})*")
_QUOTED_VALUE = re.compile(rf"(?:[^\s\"'`<>]|{_MAY_GO_ON})*[\"'`]?")
_LONGEST_VALUE = 260
_LOGIN = re.compile(rf"[^\s/\"'<>]*[{WORD}]*")  # after `://`, with host and path
_LONGEST_URL = 640
_ENTROPY = 2.5  # ordinary words and repeated characters have less
_SURE = 3.0  # if only a space separates a name and its value
_SIGN = re.compile(r"[!$%^&*?#@+~]")
_BREAK = r"(?:\s|\\n|\\r)"  # an environment file writes a line break as two characters
_KIND = r"(?:[A-Z0-9]{2,16} ){0,3}"
PEM_HEAD = re.compile(rf"-----BEGIN {_KIND}PRIVATE KEY(?: BLOCK)?-----")
PEM_BODY = re.compile(
    rf"(?>(?:{_BREAK}{{0,4}}(?:[A-Za-z0-9+/=]{{16,}}+|[A-Za-z-]{{2,24}}: [^\n\"]{{0,80}}))*)"
    rf"(?P<end>(?:{_BREAK}{{1,4}}[A-Za-z0-9+/=]{{1,80}})?{_BREAK}{{0,4}}-----END {_KIND}PRIVATE KEY(?: BLOCK)?-----)?"
)


def find_secrets(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of secrets from `start` on.

    A PEM block counts without its end, because the part already sent is critical enough.
    """
    if any(map(_may_be_key, _LONG.findall(text, start))):
        yield from _keys(text, start)
    if "://" in text:
        for match in _URL.finditer(text, max(0, start - NAMES_REACH)):
            if match.start() >= start:
                yield match.span()
    small = lowered(text)
    if (len(small) < _SHORT_TEXT or _may_join(text)) and _has_name(small):  # which looks for what joins, too
        yield from _named_values(text, small, start)
    if (" -" in text or text.startswith("-p")) and contains_any(text, _OPTIONS):
        yield from _option_values(text, start)
    if PEM_PREFIX in text:
        for head in PEM_HEAD.finditer(text, start):
            body = PEM_BODY.match(text, head.end())
            yield head.start(), body.end() if body else head.end()


def _named_values(text: str, small: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield secrets after a name such as `password`. ``small``: `text` in lower case."""
    named = _NAMED.search(small, max(0, start - NAMES_REACH))
    while named:
        first, last = named.span("quoted" if named["quoted"] else "value")
        last = _with_closing(text, first, last)
        if first >= start and _is_secret(text, named, first, last):
            yield first, last
        named = _NAMED.search(small, first)  # a value may end with the name of the next one


def _option_values(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield passwords in command options: `curl -u name:…`."""
    for option in _OPTION.finditer(text, max(0, start - NAMES_REACH)):
        first, last = option.span("value")
        if first >= start and first - option.start() <= NAMES_REACH and _is_random(text[first:last], _ENTROPY):
            yield first, last


def _is_secret(text: str, named: re.Match[str], first: int, last: int) -> bool:
    """Return whether a named value is random, and long enough for its name."""
    if last - first < _SHORT and (named["bare"] or not _PASSWORD_NAME.search(named.string, named.start(), first)):
        return False
    if _OBJECT.fullmatch(text, first, last) or _PLACE.fullmatch(text, first, last):
        return False
    if text.startswith("PASS: ", named.start()) and len(_RESULT.findall(text)) > _FEW_RESULTS:
        return False
    is_plain = bool(named["bare"]) and not _SIGN.search(text, first, last + 1)
    return _is_random(text[first:last], _SURE if is_plain else _ENTROPY)


def _with_closing(text: str, first: int, last: int) -> int:
    """Return `last`, moved past a bracket there that closes one inside the value: `abc(2024)`."""
    opening = _CLOSING.get(text[last : last + 1])
    return last + 1 if opening and opening in text[first:last] else last


def values_from(text: str, start: int) -> list[int]:
    """Return the offsets from `start` on at which named values begin.

    Text before `start` is searched for names only.
    """
    near = start - _JOINT_REACH
    is_joined = _may_join(text[near if near > 0 else 0 :])
    is_option = (" -" in text or text.startswith("-p")) and contains_any(text, _OPTIONS)
    if not (is_joined or is_option):  # the common case; this runs for every chunk of a stream
        return []
    small, reach = lowered(text), max(0, start - NAMES_REACH)
    heads = list(_VALUE_NEXT.finditer(small, reach)) if is_joined and _has_name(small[reach:]) else []
    if is_option:
        heads += _OPTION_NEXT.finditer(text, reach)
    if not heads:
        return []
    return sorted(at for head in heads if (at := head.end()) >= start and at - head.start() <= NAMES_REACH)


def may_begin(text: str, start: int) -> bool:
    """Return whether `values_from` may find anything in this text or in one that continues it.

    False if no part of a secret's name ends after `start`, and no option of a command may stand in the text; parts of
    names before `start` are not looked for. One scan of few characters, because this runs for every chunk of a stream.
    """
    near = start - LONGEST_START + 1
    return has_start(text[near if near > 0 else 0 :]) or " -" in text or text[:2] == "-p"


def has_start(text: str) -> bool:
    """Return whether part of a secret's name stands in `text`."""
    return _START.search(lowered(text)) is not None


def _may_join(text: str) -> bool:
    """Return whether `text` may contain something that joins a name to a value."""
    if ":" in text or "=" in text or ">" in text:
        return True
    small = lowered(text)
    if not _JOINT_WORDS.isdisjoint(_JOINT_WORD.findall(small)):
        return True
    return "bearer " in small or "basic " in small or "password " in small or "token " in small


def count_names(small: str) -> int:
    """Return how often part of a secret's name may occur in a lower-case text."""
    try:
        return len(_STEM.findall(small))
    except UnicodeEncodeError:
        return sum(small.count(stem) for stem in _STEMS)


def _has_name(small: str) -> bool:
    """Return whether a lower-case text may contain the name of a secret joined to a value."""
    if len(small) < _SHORT_TEXT:
        start = _START.search(small)
        return start is not None and _JOINT.search(small, start.start()) is not None
    try:
        return _JOINED.search(small) is not None
    except UnicodeEncodeError:  # half of a surrogate pair, which RE2 cannot encode
        return True


def value_end(text: str, at: int) -> int:
    """Return the latest end of the value that begins at `at`: after its closing quote if it is quoted."""
    shape = _QUOTED_VALUE if at and text[at - 1] in "\"'`" else _VALUE
    match = shape.match(text, at, at + _LONGEST_VALUE)
    return match.end() if match else at


def login_end(text: str, at: int, end: int) -> int:
    """Return the end of ``text[at:end]``, extended if it begins a URL whose user name and password continue."""
    behind = text.find("://", at, end)
    match = _LOGIN.match(text, behind + 3, behind + _LONGEST_URL) if behind >= 0 else None
    return max(end, match.end()) if match else end


def _may_be_key(token: str) -> bool:
    return (
        "_" in token or _DIGIT.search(token) is not None or token.isupper() or contains_any(token, _MAYBE_LETTERS)
    ) and _LETTER.search(token) is not None


def begins_a_key(token: str, before: int) -> bool:
    """Return whether a vendor's key begins in the first `before` characters of `token` and continues after them.

    ``token``: a text without spaces.
    """
    for head in _BY_HEAD.keys() & {word[:2] for word in _WORDS.findall(token)}:
        for prefix in _BY_HEAD[head]:
            at = token.find(prefix)
            match = PREFIXED[prefix].match(token, at) if 0 <= at < before else None
            if match and match.end() > before:
                return True
    return False


def _keys(text: str, start: int) -> Iterator[tuple[int, int]]:
    for head in _BY_HEAD.keys() & {word[:2] for word in _WORDS.findall(text)}:
        for prefix in _BY_HEAD[head]:
            at = text.find(prefix, start)
            while at >= 0:
                match = None
                if not at or not _IN_WORD.match(text, at - 1):
                    match = PREFIXED[prefix].match(text, at)
                    if match:
                        yield match.span()
                at = text.find(prefix, match.end() if match else at + 1)
    for sign, before, pattern in INSIDE:
        at = text.find(sign, start)
        while at >= 0:
            match = pattern.search(text, max(start, at - before), at + _LONGEST_INSIDE)
            if match and match.start() <= at:
                yield match.span("secret") if "secret" in pattern.groupindex else match.span()
            at = text.find(sign, max(at + 1, match.end() if match else 0))


def _is_random(value: str, least: float) -> bool:
    """Return whether a value looks like a password rather than a word.

    It must mix letters and digits, or cases and symbols, and have at least `least` bits of Shannon entropy per
    character.
    """
    digits, letters = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if not letters or not (digits or (value.lower() != value != value.upper() and _SIGN.search(value))):
        return False
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts) >= least
