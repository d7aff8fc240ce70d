"""Pieces of texts that people wrote: distinct ones, of prose, from every kind of file that has some."""

import json

from bench.marks.people import LENGTH, pieces

PROSE = "The harbour lies open to the north, and in winter the boats are drawn up behind the old customs house. "


def said(text):
    return (text + " " + PROSE) * 7


def test_each_kind_of_file_gives_its_texts_and_none_twice(tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": said("alpha")}) + "\n")
    (tmp_path / "README.md").write_text(said("beta"))
    (tmp_path / "copy.txt").write_text(said("beta").upper())
    (tmp_path / "LICENSE").write_text(said("gamma"))
    (tmp_path / "module.py").write_text(f'def one():\n    """{said("delta")}"""\n')
    (tmp_path / "data.bin").write_bytes(said("epsilon").encode())
    found = list(pieces([tmp_path]))
    assert [next(word for word in ("alpha", "beta", "gamma", "delta") if word in piece) for piece in found] == [
        "gamma", "beta", "delta", "alpha",
    ]  # fmt: skip
    assert all(len(piece) == LENGTH for piece in found)


def test_numbers_and_what_cannot_be_read_are_no_texts(tmp_path):
    (tmp_path / "numbers.txt").write_text("0123456789 " * 200)
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xe8" * 2000)
    assert list(pieces([tmp_path])) == []
