"""Secrets that show what they are: keys by their vendor's prefix, JSON Web Tokens, PEM private keys.

Prefixes as published by the vendors (GitHub, GitLab, AWS, Google, Slack, Stripe, Hugging Face, SendGrid and
others), JWT by RFC 7519, PEM by RFC 7468. A token must hold a digit: prose with hyphens has none.
"""

import re
from collections.abc import Iterator

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
    "AGE-SECRET-KEY-1": r"[A-Z0-9]{58}",
}
JWT_PREFIX = "eyJ"
PEM_PREFIX = "-----BEGIN"

# By the rarest sign in each, so that prose is cleared by a few searches.
_BY_SIGN = {
    "_": [p for p in _PREFIXES if "_" in p],
    "-": [p for p in _PREFIXES if "-" in p],
    "": [p for p in (*_PREFIXES, JWT_PREFIX) if "_" not in p and "-" not in p],
}

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    + "|".join(f"{re.escape(p)}(?=[A-Za-z_./+-]{{0,64}}[0-9]){rest}" for p, rest in _PREFIXES.items())
    + r"|eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?)"
)
_BREAK = r"(?:\s|\\n|\\r)"  # an environment file writes the line break as two characters
_KIND = r"(?:[A-Z0-9]{2,16} ){0,3}"
PEM_HEAD = re.compile(rf"-----BEGIN {_KIND}PRIVATE KEY(?: BLOCK)?-----")
PEM_BODY = re.compile(
    rf"(?:{_BREAK}{{0,4}}(?:[A-Za-z0-9+/=]{{16,}}+|[A-Za-z-]{{2,24}}: [^\n\"]{{0,80}}))*+"
    rf"(?P<end>(?:{_BREAK}{{1,4}}[A-Za-z0-9+/=]{{1,80}})?{_BREAK}{{0,4}}-----END {_KIND}PRIVATE KEY(?: BLOCK)?-----)?"
)


def find_secrets(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of secrets from `start` on. A PEM block counts without its end: what was sent so far is bad enough."""
    if any(sign in text and any(prefix in text for prefix in group) for sign, group in _BY_SIGN.items()):
        for match in _TOKEN.finditer(text, start):
            yield match.span()
    if PEM_PREFIX in text:
        for head in PEM_HEAD.finditer(text, start):
            body = PEM_BODY.match(text, head.end())
            yield head.start(), body.end() if body else head.end()
