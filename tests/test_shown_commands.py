"""Every command of ours that a document shows exists, with the options that it shows."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from gateway.cli.app import app
from gateway.cli.terminal.old_spellings import COMMANDS, OPTIONS

TREE = Path(__file__).parents[1]
HISTORY = ("CHANGELOG.md", "adr")
"""They say what was so at the time."""
DOCUMENTS = sorted(
    file
    for file in (*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), *(TREE / "deploy").rglob("*"))
    if file.suffix in {".md", ".yaml", ".service", ".conf", ".sh"}
    and not set(HISTORY) & set(file.parts)
    and "rendered" not in file.parts
)
LINE = re.compile(
    r"(?:^|(?<=[\s`'/(|&;]))(?<!-n )(?<!-u )domicile (?:--version|[a-z][a-z-]*(?: |$|`))[^`|;&\n)]*", re.MULTILINE
)
ROOT = typer.main.get_command(app)


def shown(text):
    """The command lines in a text, each on one line."""
    joined = re.sub(r" *\\\n\s*(?:# ?)?", " ", text)
    blocks = "\n".join(re.findall(r"^```(?:bash|sh|)\n(.*?)^```", joined, re.MULTILINE | re.DOTALL))
    inline = re.findall(r"`([^`\n]*\bdomicile [^`\n]*)`", joined)
    return [found[0].rstrip("`") for part in (blocks, *inline) for found in LINE.finditer(part)]


def commands_of(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return shown(text)
    said = re.sub(r" *\\\n\s*(?:# ?)?", " ", text)
    return [found[0] for found in LINE.finditer(said) if "exec" in said[: found.start()].rpartition("\n")[2]]


def words_of(line):
    try:
        return shlex.split(line, comments=True)[1:]
    except ValueError:  # a quote that the end of the inline code cut
        return line.split()[1:]


def fault(line):
    """What is wrong with a command line; None if nothing is."""
    command, words = ROOT, words_of(line)
    path = []
    while words and hasattr(command, "commands"):
        if words[0].startswith("-") or words[0] not in command.commands:
            break
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return f"there is no command {' '.join((*path, words[0]))!r}"
    options = {"--help"} | {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words:
        option = word.partition("=")[0].rstrip(",.:")
        if re.fullmatch(r"--?[a-z][a-z0-9-]*", option) and option not in options:
            return f"{' '.join(path)} has no option {option}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(TREE)))
def test_every_command_that_is_shown_exists_with_its_options(document):
    assert {line: said for line in commands_of(document) if (said := fault(line)) is not None} == {}


def test_the_documents_show_many_commands():
    assert sum(len(commands_of(document)) for document in DOCUMENTS) > 200
    assert len(commands_of(TREE / "deploy" / "compose" / "compose.yaml")) >= 1


@pytest.mark.parametrize(
    "text",
    ["`domicile tenant make acme`", "```bash\ndomicile tenant create acme \\\n  --colour red\n```", "`domicile shout`"],
)
def test_a_mistake_in_a_shown_command_is_found(text):
    (line,) = shown(text)
    assert fault(line) is not None


def test_no_document_shows_a_spelling_of_before():
    old = {f"{group} {verb}".strip() for group, renamed in COMMANDS.items() for verb in renamed}
    lines = [line for document in DOCUMENTS for line in commands_of(document)]
    assert [line for line in lines if any(line.startswith(f"domicile {spelling} ") for spelling in old)] == []
    for path, renamed in OPTIONS.items():
        mine = [line for line in lines if line.startswith(f"domicile {path} ")]
        assert [line for line in mine for option in renamed if option in line.split()] == []
