"""The declared list of a pack's files: complete, without doubt, and told by verify.py and the README."""

import zipfile
from pathlib import Path

import pytest

import audit
from audit.pack.contents import CHECKED, CONTENTS, PROGRAM, RECOMPUTED, SIGNED, basis_of
from audit.pack_verifier import pack_tables
from tests.audit.pack.test_export import filled, pack, verify  # noqa: F401  (fixtures)

ROOT = Path(audit.__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("events.jsonl", CHECKED),
        ("proofs/keys/000.note", CHECKED),
        ("events.csv", RECOMPUTED),
        ("ropa_controller.json", SIGNED),
        ("dora/b_05.01.csv", SIGNED),
        ("dsar_01/package_de.html", SIGNED),
        ("verify.py", PROGRAM),
        ("EVENTS.CSV", ""),
        ("events.csv2", ""),
        ("other", ""),
    ],
)
def test_each_name_has_the_basis_of_the_first_pattern_that_fits(name: str, basis: str) -> None:
    assert basis_of(name) == basis


def test_every_file_of_a_pack_is_in_the_list_and_verify_py_names_those_that_are_only_signed(pack: Path) -> None:  # noqa: F811
    with zipfile.ZipFile(pack) as archive:
        names = set(archive.namelist())
        page = archive.read("README.html").decode()
    assert {name for name in names if not basis_of(name)} == set()
    code, report = verify(pack, where=pack)
    assert code == 0
    assert report["only_signed"] == sorted(name for name in names if basis_of(name) in (SIGNED, PROGRAM))
    assert "measures.csv" in report["only_signed"] and "events.csv" not in report["only_signed"]
    for pattern, *_ in CONTENTS:
        assert f">{pattern}<" in page


def test_the_documentation_lists_every_pattern_with_its_basis() -> None:
    text = (ROOT / "docs/evidence-pack.md").read_text(encoding="utf-8")
    for pattern, basis, what, source in CONTENTS:
        assert f"| `{pattern}` | {basis} | {what} | {source} |" in text


def test_the_list_and_the_verifier_agree_on_what_is_recomputed() -> None:
    assert {pattern for pattern, basis, *_ in CONTENTS if basis == RECOMPUTED} == set(pack_tables.RECOMPUTED)
    for name in (*pack_tables.CHECKED, "proofs/range.json", "certificates/x.note"):
        assert basis_of(name) == CHECKED


def test_no_pattern_stands_twice() -> None:
    patterns = [pattern for pattern, *_ in CONTENTS]
    assert len(set(patterns)) == len(patterns)
