"""Removal of layout that is not content: Markdown emphasis, and line breaks inserted by mail programs.

An underscore is a word character, so ``_0304819259_`` and ``__DE89…__`` would hide a number that ``*0304819259*`` does
not. A phone number whose groups were split at a line break is joined across it.
"""

import re

# CommonMark 6.2: the opening delimiter has no word before it and no space after it, the closing one the reverse.
_EMPHASIS = re.compile(r"(_(?<![\w/.@=-]_)_?)(?=[^\s_])([^\n]{1,80}?)(?<=[^\s_])\1(?![\w@])")
_BROKEN = re.compile(r"\n(?<=[^\n]{30}[0-9]\n)(?=[0-9])")
_WORDS = re.compile(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 3  # minimum number of words in a line of prose that was broken
_CELLS = re.compile(r"[;\t|]|,(?=[^\s])")
_MOST_CELLS = 1
_HEAD = 6  # characters of a line that are compared as its shape
# What starts a separate line: a date, a time, a list item, a postal code and its town, a table row.
_OWN_LINE = re.compile(
    r"(?:19|20)[0-9]{2}[-./]|[0-9]{1,2}[.:/-][0-9]{2}|[0-9]{1,3}[.)] |[0-9]+[;\t|,]"
    r"|[0-9]{6}[ -][0-9]{6}(?![0-9])|[0-9]{10,}[ .:]"
    r"|[0-9]{3} ?[0-9]{1,3},? [^\W\d_](?:[^\W\d_]|[\u0300-\u036f])|[0-9]{4,5}\n[^\W\d_]"
    r"|[0-9]{2,4}-[0-9]{3} [^\W\d_]|[0-9]{4} [A-Z]{2}\b"
)


def without_layout(text: str) -> str:
    """Return `text` with underscore emphasis as ``*`` and inserted line breaks as spaces; the length is unchanged."""
    if "_" in text:
        text = _EMPHASIS.sub(_starred, text)
    if "\n" in text and _BROKEN.search(text):
        text = _BROKEN.sub(_joined, text)
    return text


def _starred(emphasised: re.Match[str]) -> str:
    sign = "*" * len(emphasised[1])
    return f"{sign}{emphasised[2]}{sign}"


def _joined(broken: re.Match[str]) -> str:
    text, at = broken.string, broken.start()
    line = text[max(text.rfind("\n", 0, at) + 1, at - 200) : at]
    if _shape(line) == _shape(text[at + 1 : at + 1 + _HEAD]):  # log lines, which all start alike
        return "\n"
    is_prose = len(_WORDS.findall(line)) >= _FEWEST_WORDS and len(_CELLS.findall(line)) <= _MOST_CELLS
    return " " if is_prose and not _OWN_LINE.match(text, at + 1) else "\n"


def _shape(line: str) -> str:
    """Return the start of a line with each digit replaced by 9 and each letter by A."""
    return "".join("9" if sign.isdigit() else "A" if sign.isalpha() else sign for sign in line[:_HEAD])
