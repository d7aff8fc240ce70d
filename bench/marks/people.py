"""Distinct pieces of texts that people wrote: files with texts, and documents, licences and docstrings."""

import ast
import json
import warnings
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import torch

LENGTH = 600
"""Characters of a piece, some 130 tokens."""
LETTERS = 0.6
"""Of a piece, at least: tables of numbers and codes are no prose."""
DOCUMENTS = frozenset({".md", ".rst", ".txt"})
LARGEST = 2 << 20


def pieces(folders: Sequence[Path]) -> Iterator[str]:
    """Of all texts below the folders: ``.jsonl`` with a field `text`, documents, licences, docstrings of ``.py``."""
    seen = set[bytes]()
    for text in (text for folder in folders for file in sorted(folder.rglob("*")) for text in _texts(file)):
        for start in range(0, len(text) - LENGTH + 1, LENGTH):
            piece = text[start : start + LENGTH]
            letters = "".join(filter(str.isalpha, piece)).lower()
            name = blake2b(letters.encode("utf-8", "replace"), digest_size=8).digest()
            if len(letters) >= LETTERS * LENGTH and name not in seen:
                seen.add(name)
                yield piece


def here() -> list[Path]:
    """Of this machine: installed packages and what the system documents."""
    return [Path("/usr/share/doc"), Path("/usr/share/common-licenses"), Path(torch.__file__).parents[1]]


def _texts(file: Path) -> Iterator[str]:
    name = file.name.upper()
    document = file.suffix in DOCUMENTS or name.startswith(("LICEN", "COPY", "NOTICE", "README", "CHANGE"))
    if not (document or file.suffix in {".py", ".jsonl"}) or not file.is_file() or file.stat().st_size > LARGEST:
        return
    try:
        text = file.read_text("utf-8")
    except (OSError, ValueError):
        return
    if file.suffix == ".jsonl":
        for line in text.splitlines():
            yield str(json.loads(line).get("text", ""))
    elif file.suffix == ".py":
        yield "\n\n".join(_docstrings(text))
    else:
        yield text


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
