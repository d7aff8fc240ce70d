"""The languages of the console: catalogues of texts as data files, chosen by cookie or by what the browser prefers."""

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
COOKIE: Final = "domicile-language"
_SEPARATORS: Final[Mapping[str, tuple[str, str]]] = {"en": (",", "."), "de": (".", ","), "fr": ("\u202f", ",")}


@dataclass(frozen=True, slots=True)
class Language:
    """One catalogue, by the code of its language (BCP 47)."""

    code: str
    texts: Mapping[str, str]

    def text(self, key: str, /, **values: object) -> str:
        """The text of `key` with `values` filled in. Raises KeyError for a key that there is not."""
        return self.texts[key].format(**values) if values else self.texts[key]

    def known(self, key: str, otherwise: str) -> str:
        """The text of a key made from a value that may have none yet, as a new kind of event."""
        return self.texts.get(key, otherwise)

    def number(self, value: float | int, decimals: int = 0) -> str:
        thousands, point = _SEPARATORS[self.code]
        whole = f"{value:,.{decimals}f}"
        return whole.replace(",", "\0").replace(".", point).replace("\0", thousands)

    def instant(self, at: str | datetime) -> str:
        """``2026-11-30 08:15:02``, in UTC."""
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
        return f"{moment:%Y-%m-%d %H:%M:%S}"


@cache
def language(code: str) -> Language:
    """Raises KeyError for one that there is not."""
    return Language(code, json.loads((FOLDER / f"{code}.json").read_text(encoding="utf-8")))


def language_of(request: Request) -> Language:
    """By the cookie, else the first of ours that the browser accepts (RFC 9110 §12.5.4), else English."""
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
