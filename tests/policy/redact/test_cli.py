import json

import pytest
from typer.testing import CliRunner

from policy.redact.cli import app
from tests.data.redaction.filling import as_json
from tests.data.redaction.make import cases


def run(*arguments, **more):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **more)


@pytest.fixture
def labelled(tmp_path):
    path = tmp_path / "set.jsonl"
    made = list(cases(seed=3, rounds=1, held_out=True))[:60]
    path.write_text("\n".join(json.dumps(as_json(case)) for case in made), encoding="utf-8")
    return path


def test_a_text_is_printed_redacted_with_its_findings_on_request():
    assert run("text", "Write to alice@example.org.").output == "Write to [EMAIL].\n"
    shown = json.loads(run("text", "-", "--json", input="PESEL 44051401359").output)
    assert shown == {
        "text": "PESEL [NATIONAL_ID]",
        "findings": [{"start": 6, "end": 17, "label": "national_id.pl_pesel"}],
    }


def test_a_file_is_printed_redacted_and_stays_as_it_is(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("mail alice@example.org", encoding="utf-8")
    assert run("file", path, "--action", "pseudonymise").output.startswith("mail <EMAIL_1_")
    assert path.read_text(encoding="utf-8") == "mail alice@example.org"


def test_an_evaluation_prints_figures_for_people_and_machines(labelled):
    read = json.loads(run("eval", labelled, "--json").output)
    assert read["texts"] == 60 and 0 < read["recall"] <= 1 and read["us_per_1000_characters"] > 0
    assert {"by_label", "by_language", "by_variant", "touched_share", "right_label", "precision"} <= read.keys()
    assert "| label | spans | recall |" in run("eval", labelled).output


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["eval", "none.jsonl"], 1, "No such file"),
        (["file", "none.txt"], 1, "No such file"),
        (["text", "x", "--action", "tag"], 2, "name mask or pseudonymise"),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_with_a_status(arguments, status, said):
    done = run(*arguments)
    assert done.exit_code == status and said in done.output


def test_names_are_found_on_request():
    assert run("text", "Dear Klaus Müller, thank you.", "--ner").output == "Dear [PERSON], thank you.\n"
    assert "Klaus Müller" in run("text", "Dear Klaus Müller, thank you.").output


def test_a_count_of_one_is_printed_as_a_number(tmp_path):
    text = "mail bob@example.org"
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"text": text, "spans": [{"start": 5, "end": len(text), "label": "EMAIL"}]}))
    email = json.loads(run("eval", str(path), "--json").output)["by_label"]["email"]
    assert [type(email[count]) for count in ("spans", "found", "right_label_count", "right_findings")] == [int] * 4


def test_labels_without_a_meaning_here_are_told_and_counted(tmp_path):
    line = {
        "id": "1",
        "lang": "en",
        "text": "see alice@example.org",
        "spans": [{"start": 4, "end": 21, "label": "USERNAME"}],
    }
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(line), encoding="utf-8")
    result = run("eval", path, "--json")
    assert "USERNAME (1 spans)" in result.stderr
    figures = json.loads(result.stdout)
    assert figures["unknown_labels"] == {"USERNAME": 1} and figures["recall"] == 1.0 and figures["right_label"] == 0.0


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0b", "\x1c"])
def test_a_text_may_hold_line_ends_that_end_no_line_of_the_set(tmp_path, sign):
    line = {"id": "1", "lang": "en", "text": f"a{sign}b", "spans": []}
    path = tmp_path / "set.jsonl"
    path.write_text("\ufeff" + json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(run("eval", path, "--json").stdout)["texts"] == 1
