"""docs/extending.md: every file and declaration that it names is there, and each change touches few files."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
PAGE = (TREE / "docs/extending.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:])
PACKAGES = ("gateway/", "regions/", "policy/", "audit/", "backend/")
MOST_FILES = 4
each = pytest.mark.parametrize("section", SECTIONS)


def files(section):
    """The paths that a section lists, each with whether it is a file to add."""
    return re.findall(r"^- `([^`]+)`(?: \*(new)\*)?", SECTIONS[section], re.MULTILINE)


def attribute(name):
    """The object of a dotted name, in the longest module of it that can be imported."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"there is no module in {name}")


def test_eleven_changes_are_described():
    assert len(SECTIONS) == 11


@each
def test_every_file_that_is_named_exists_and_what_is_to_be_added_does_not(section):
    assert files(section)
    for path, new in files(section):
        file = TREE / path
        assert (file.parent.is_dir() and not file.exists()) if new else file.is_file(), path


@each
def test_a_change_touches_few_product_files(section):
    count = sum(path.startswith(PACKAGES) for path, _ in files(section))
    assert count <= MOST_FILES, f"{section}: {count} product files"


@each
def test_every_declaration_that_is_named_can_be_imported(section):
    told = SECTIONS[section].partition("\nDeclaration: ")[2].partition("\n\n")[0]
    names = [name for name in re.findall(r"`([\w.]+)`", told) if name.startswith(tuple(p[:-1] for p in PACKAGES))]
    assert names
    for name in names:
        assert attribute(name) is not None


@each
def test_its_sample_is_valid(section):
    samples = re.findall(r"^```(\w+)\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)
    assert samples
    for language, text in samples:
        (tomllib.loads if language == "toml" else ast.parse)(text)
