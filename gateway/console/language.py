"""Languages of the console: message catalogues as data files, chosen by cookie or Accept-Language."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request

FOLDER: Final = Path(__file__).with_name("languages")
NAMES: Final[Mapping[str, str]] = {"en": "English", "de": "Deutsch", "fr": "Français"}
LAWS: Final = ("law.gdpr", "law.ai_act")
"""Keys of those that have another name in each language."""
COOKIE: Final = "domicile-language"
_SEPARATORS: Final[Mapping[str, tuple[str, str]]] = {"en": (",", "."), "de": (".", ","), "fr": ("\u202f", ",")}


@dataclass(frozen=True, slots=True)
class Language:
    """Message catalogue of one language, by its BCP 47 code."""

    code: str
    texts: Mapping[str, str]

    def text(self, key: str, /, **values: object) -> str:
        """Return the text of `key` with `values` filled in. Raises KeyError for an unknown key."""
        return self.texts[key].format(**values) if values else self.texts[key]

    def known(self, key: str, otherwise: str) -> str:
        """Return the text of a key derived from a value, or the value itself if it has no text, such as a new kind of
        event."""
        return self.texts.get(key, otherwise)

    def article(self, cited: str) -> str:
        """Return a citation such as ``GDPR 15`` with the laws as this language abbreviates them."""
        english = language("en")
        for key in LAWS:
            cited = cited.replace(english.text(key), self.text(key))
        return cited

    def number(self, value: float | int, decimals: int = 0) -> str:
        thousands, point = _SEPARATORS[self.code]
        whole = f"{value:,.{decimals}f}"
        return whole.replace(",", "\0").replace(".", point).replace("\0", thousands)

    def instant(self, at: str | datetime) -> str:
        """Format an instant as ``2026-11-30 08:15:02``, in UTC."""
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
        return f"{moment:%Y-%m-%d %H:%M:%S}"


@cache
def language(code: str) -> Language:
    """Return the catalogue of a language. Raises KeyError for an unknown code."""
    return Language(code, json.loads((FOLDER / f"{code}.json").read_text(encoding="utf-8")))


def language_of(request: Request) -> Language:
    """Choose the language: by cookie, otherwise by Accept-Language (RFC 9110 §12.5.4), otherwise English."""
    chosen = request.cookies.get(COOKIE, "")
    if chosen in NAMES:
        return language(chosen)
    weighed = []
    for part in request.headers.get("accept-language", "")[:500].split(","):
        tag, _, weight = part.strip().partition(";q=")
        try:
            weighed.append((float(weight or 1), tag.split("-")[0].lower()))
        except ValueError:
            continue
    preferred = [code for _, code in sorted(weighed, key=lambda each: -each[0]) if code in NAMES]
    return language(preferred[0] if preferred else "en")
