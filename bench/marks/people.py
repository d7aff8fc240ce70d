"""Distinct pieces of texts that people wrote: files with texts, documents, web and man pages, licences, docstrings."""

import ast
import gzip
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from html.parser import HTMLParser
from pathlib import Path

import torch

LENGTH = 600
"""Characters of a piece, some 130 tokens."""
LETTERS = 0.6
"""Of a piece, at least: tables of numbers and codes are no prose."""
DOCUMENTS = frozenset({".md", ".rst", ".txt", ".pod"})
PAGES = frozenset({".html", ".htm"})
LARGEST = 2 << 20
LINE = 40
"""Characters of a line from which on it is left out where it stood in a text before: two texts may share a preamble,
and not begin their pieces at the same place of it."""
ROFF = re.compile(r"\\(?:f(?:\[.*?\]|\(..|.)|\*(?:\[.*?\]|\(..|.)|[&%:/,|^]|s[-+]?\d+|\".*)|^['.].*", re.MULTILINE)
ROFF_CHARACTER = re.compile(r"\\(?:\((..)|\[(.*?)\]|([-e ~]))")
UNSEEN = frozenset({"script", "style", "pre", "nav", "head"})
SPACES = re.compile(r"[ \t\r\f\v]+")
EMPTY = re.compile(r"\n\s*\n")


def pieces(folders: Sequence[Path]) -> Iterator[str]:
    """Of all texts below the folders: ``.jsonl`` with a field `text`, documents, pages, licences, docstrings of
    ``.py``; also of what is compressed by gzip."""
    seen, lines = set[bytes](), set[bytes]()
    for text in (text for folder in folders for file in sorted(folder.rglob("*")) for text in _texts(file)):
        text = EMPTY.sub("\n\n", "\n".join(line for line in text.splitlines() if _is_new(line, lines)))
        for start in range(0, len(text) - LENGTH + 1, LENGTH):
            piece = text[start : start + LENGTH]
            letters, name = _named(piece)
            if letters >= LETTERS * LENGTH and name not in seen:
                seen.add(name)
                yield piece


def _is_new(line: str, seen: set[bytes]) -> bool:
    """Whether it is short or stood nowhere before."""
    letters, name = _named(line)
    if letters < LINE:
        return True
    known = name in seen
    seen.add(name)
    return not known


def _named(text: str) -> tuple[int, bytes]:
    """The number of its letters, and what two texts share whose letters are the same."""
    letters = "".join(filter(str.isalpha, text)).lower()
    return len(letters), blake2b(letters.encode("utf-8", "replace"), digest_size=8).digest()


def here() -> list[Path]:
    """Of this machine: installed packages and what the system documents."""
    return [Path("/usr/share/doc"), Path("/usr/share/common-licenses"), Path(torch.__file__).parents[1]]


def _texts(file: Path) -> Iterator[str]:
    name = file.name.removesuffix(".gz")
    ending = Path(name).suffix
    named = name.upper().startswith(("LICEN", "COPY", "NOTICE", "README", "CHANGE"))
    manual = file.parent.name.startswith("man") and ending[1:2].isdigit()
    if not (named or manual or ending in DOCUMENTS | PAGES | {".py", ".jsonl"} or _is_bare(file)):
        return
    if not file.is_file() or file.stat().st_size > LARGEST:
        return
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, ValueError, EOFError):
        return
    if ending == ".jsonl":
        for line in text.splitlines():
            yield str(json.loads(line).get("text", ""))
    elif ending == ".py":
        yield "\n\n".join(_docstrings(text))
    elif ending in PAGES:
        yield _of_page(text)
    else:
        yield _of_manual(text) if manual else text


def _is_bare(file: Path) -> bool:
    """Sayings, one file a subject, have no ending."""
    return file.suffix == "" and file.parent.name in {"fortunes", "de", "it"}


def _of_manual(source: str) -> str:
    """What is said by a page in roff: without its requests and escapes."""
    return ROFF_CHARACTER.sub(lambda found: "-" if found[3] == "-" else " ", ROFF.sub("", source))


def _of_page(source: str) -> str:
    page = _Page()
    page.feed(source)
    return "".join(page.said)


class _Page(HTMLParser):
    """The text of a page, a block of it a line."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._unseen += tag in UNSEEN
        if tag in {"p", "li", "div", "td", "dd", "dt", "h1", "h2", "h3", "br", "tr"}:
            self.said.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._unseen = max(0, self._unseen - (tag in UNSEEN))

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.said.append(SPACES.sub(" ", data.replace("\n", " ")))


def _docstrings(source: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
