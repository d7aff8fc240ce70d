"""Secrets that show what they are: keys by their vendor's prefix, JSON Web Tokens, PEM private keys, log-ins in URLs,
and random values beside a word such as `password`.

Prefixes as published by the vendors (GitHub, GitLab, AWS, Google, Slack, Stripe, Hugging Face, SendGrid and
others), JWT by RFC 7519, PEM by RFC 7468. A token must hold a digit: prose with hyphens has none.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

from policy.redact.normalise import contains_any, lowered

# prefix -> pattern of what follows it
_PREFIXES: dict[str, str] = {
    "sk-": r"[A-Za-z0-9_-]{16,255}",
    "dom_live_": r"[A-Za-z0-9_]{20,80}",
    "ghp_": r"[A-Za-z0-9]{30,255}",
    "gho_": r"[A-Za-z0-9]{30,255}",
    "ghu_": r"[A-Za-z0-9]{30,255}",
    "ghs_": r"[A-Za-z0-9]{30,255}",
    "ghr_": r"[A-Za-z0-9]{30,255}",
    "github_pat_": r"[A-Za-z0-9_]{22,255}",
    "glpat-": r"[A-Za-z0-9_-]{20,64}",
    "AKIA": r"[A-Z0-9]{16}",
    "ASIA": r"[A-Z0-9]{16}",
    "AIza": r"[A-Za-z0-9_-]{35}",
    "ya29.": r"[A-Za-z0-9_-]{20,255}",
    "xoxb-": r"[A-Za-z0-9-]{10,250}",
    "xoxp-": r"[A-Za-z0-9-]{10,250}",
    "xoxa-": r"[A-Za-z0-9-]{10,250}",
    "xoxr-": r"[A-Za-z0-9-]{10,250}",
    "xoxs-": r"[A-Za-z0-9-]{10,250}",
    "xapp-": r"[A-Za-z0-9-]{10,250}",
    "sk_live_": r"[A-Za-z0-9]{16,128}",
    "sk_test_": r"[A-Za-z0-9]{16,128}",
    "rk_live_": r"[A-Za-z0-9]{16,128}",
    "whsec_": r"[A-Za-z0-9+/=]{24,128}",
    "hf_": r"[A-Za-z0-9]{30,64}",
    "pypi-": r"[A-Za-z0-9_-]{50,255}",
    "npm_": r"[A-Za-z0-9]{36}",
    "SG.": r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}",
    "dop_v1_": r"[a-f0-9]{64}",
    "shpat_": r"[a-fA-F0-9]{32}",
    "hvs.": r"[A-Za-z0-9_-]{24,255}",
    "ABIA": r"[A-Z0-9]{16}",
    "ACCA": r"[A-Z0-9]{16}",
    "GOCSPX-": r"[A-Za-z0-9_-]{20,64}",
    "xoxe-": r"[A-Za-z0-9-]{10,250}",
    "glrt-": r"[A-Za-z0-9_-]{20,64}",
    "gldt-": r"[A-Za-z0-9_-]{20,64}",
    "glptt-": r"[A-Za-z0-9_-]{20,64}",
    "ATATT3": r"[A-Za-z0-9_=-]{40,255}",
    "rk_test_": r"[A-Za-z0-9]{16,128}",
    "sq0csp-": r"[A-Za-z0-9_-]{30,64}",
    "sq0atp-": r"[A-Za-z0-9_-]{20,64}",
    "doo_v1_": r"[a-f0-9]{64}",
    "dor_v1_": r"[a-f0-9]{64}",
    "shpss_": r"[a-fA-F0-9]{32}",
    "shpca_": r"[a-fA-F0-9]{32}",
    "shppa_": r"[a-fA-F0-9]{32}",
    "dapi": r"[a-f0-9]{32}",
    "key-": r"[a-f0-9]{32}",
    "NRAK-": r"[A-Z0-9]{27}",
    "lin_api_": r"[A-Za-z0-9]{32,64}",
    "figd_": r"[A-Za-z0-9_-]{30,64}",
    "tskey-": r"[A-Za-z0-9-]{16,96}",
    "rubygems_": r"[a-f0-9]{48}",
    "sntrys_": r"[A-Za-z0-9_=+/-]{40,255}",
    "dp.pt.": r"[A-Za-z0-9]{40,64}",
    "gsk_": r"[A-Za-z0-9]{40,64}",
    "xai-": r"[A-Za-z0-9]{40,96}",
    "r8_": r"[A-Za-z0-9]{30,48}",
    "pplx-": r"[A-Za-z0-9]{40,64}",
    "nvapi-": r"[A-Za-z0-9_-]{40,96}",
    "dckr_pat_": r"[A-Za-z0-9_-]{20,64}",
    "PMAK-": r"[a-f0-9-]{50,64}",
    "ntn_": r"[A-Za-z0-9]{40,64}",
    "sbp_": r"[a-f0-9]{40}",
    "pscale_tkn_": r"[A-Za-z0-9_.-]{32,64}",
    "hvb.": r"[A-Za-z0-9_-]{24,255}",
    "AGE-SECRET-KEY-1": r"[A-Z0-9]{58}",
}
JWT_PREFIX = "eyJ"
PEM_PREFIX = "-----BEGIN"

# By the rarest sign in each, so that prose is cleared by a few searches.
_BY_SIGN = {
    "_": tuple(p for p in _PREFIXES if "_" in p),
    "-": tuple(p for p in _PREFIXES if "-" in p),
    "": tuple(p for p in (*_PREFIXES, JWT_PREFIX) if "_" not in p and "-" not in p),
}

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    + "|".join(f"{re.escape(p)}(?=[A-Za-z_./+-]{{0,64}}[0-9]){rest}" for p, rest in _PREFIXES.items())
    + r"|eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?)"
)
_LONG = re.compile(r"(?<![A-Za-z0-9_./+=-])[A-Za-z0-9_./+=-]{16}")  # shorter is no token
_URL = re.compile(r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<login>[\w.%+~#=-]{0,64}:[\w.%+~#=-]{1,128})@")
_NAMED = re.compile(
    r"(?:pass(?:word|wd|wort|phrase|code)?|pwd|secret|token|(?:api|access|private|account|shared|auth|encryption"
    r"|master)[_ -]?key|credentials?"
    r"|bearer|contrase[nñ]a|mot de passe|kennwort|wachtwoord|has[lł]o|senha|l[öo]senord|adgangskode|passord"
    r"|salasana|heslo|jelsz[óo]"
    r"|parol[ae]?|lozinka|geslo|slapta[žz]odis|parool|κωδικός|парола)"
    r"(?:[\"'`]?\s{0,2}(?::=|=>|[:=]|\bis\b|\bist\b|\best\b|\bes\b|\bè\b)\s{0,2}|(?<=bearer) )[\"'`]?"
    r"(?P<value>[a-z0-9_.+/=~%@#:-]{7,255}[a-z0-9_+/=~%@#-])",
)
# One of these is in every name; most texts hold none.
_STEMS = ("pass", "pwd", "secret", "token", "key", "credential", "bearer", "contrase", "kennwort", "wachtwoord", "hasl",
          "hasł", "senha", "senord", "adgangskode", "salasana", "heslo", "jelsz", "parol", "lozinka", "geslo", "slapta",
          "parool", "κωδικός", "парола")  # fmt: skip
_NAMES_REACH = 48
_ENTROPY = 2.5  # bits a character; words and repeated signs have less
_BREAK = r"(?:\s|\\n|\\r)"  # an environment file writes the line break as two characters
_KIND = r"(?:[A-Z0-9]{2,16} ){0,3}"
PEM_HEAD = re.compile(rf"-----BEGIN {_KIND}PRIVATE KEY(?: BLOCK)?-----")
PEM_BODY = re.compile(
    rf"(?>(?:{_BREAK}{{0,4}}(?:[A-Za-z0-9+/=]{{16,}}+|[A-Za-z-]{{2,24}}: [^\n\"]{{0,80}}))*)"
    rf"(?P<end>(?:{_BREAK}{{1,4}}[A-Za-z0-9+/=]{{1,80}})?{_BREAK}{{0,4}}-----END {_KIND}PRIVATE KEY(?: BLOCK)?-----)?"
)


def find_secrets(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of secrets from `start` on. A PEM block counts without its end: what was sent so far is bad enough."""
    if _LONG.search(text, start) and any(
        sign in text and contains_any(text, group) for sign, group in _BY_SIGN.items()
    ):
        for match in _TOKEN.finditer(text, start):
            yield match.span()
    if "://" in text:
        for match in _URL.finditer(text, max(0, start - _NAMES_REACH)):
            if match.start("login") >= start:
                yield match.span("login")
    small = lowered(text)
    if contains_any(small, _STEMS):
        named = _NAMED.search(small, max(0, start - _NAMES_REACH))
        while named:
            first, last = named.span("value")
            if first >= start and _is_random(text[first:last]):
                yield first, last
            named = _NAMED.search(small, first)  # a value may end in the name of the next one
    if PEM_PREFIX in text:
        for head in PEM_HEAD.finditer(text, start):
            body = PEM_BODY.match(text, head.end())
            yield head.start(), body.end() if body else head.end()


def _is_random(value: str) -> bool:
    """Letters and digits mixed with the entropy (Shannon) of a password rather than of a word."""
    if not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)):
        return False
    counts = Counter(value).values()
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts) >= _ENTROPY
