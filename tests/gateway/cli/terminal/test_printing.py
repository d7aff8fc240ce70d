import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.terminal.printing import print_table
from gateway.store.reports.usage_report import Usage

BAR = """
import sys
from gateway.cli.terminal.printing import progress
with progress("calls", 3, hidden={hidden}) as advance:
    for _ in range(3):
        advance(1)
print("done")
"""


def run(hidden, terminal):
    """What a program with a bar writes to standard error, a terminal or a pipe, and to standard output."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", BAR.format(hidden=hidden)]
    root = Path(__file__).parents[4]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        said = os.read(ours, 1 << 16)
    except (BlockingIOError, OSError):  # a terminal that nobody wrote to
        said = b""
    os.close(ours)
    return said.decode(), done.stdout


def test_on_a_terminal_a_bar_says_how_far_it_is_and_standard_output_stays_clean():
    said, out = run(hidden=False, terminal=True)
    assert "calls" in said and "3/3" in said
    assert out == "done\n"


@pytest.mark.parametrize(("hidden", "terminal"), [(True, True), (False, False)])
def test_neither_a_machine_nor_a_pipe_gets_a_bar(hidden, terminal):
    assert run(hidden, terminal) == ("", "done\n")


COLUMNS = ("tenant", "requests", "tokens_in", "tokens_out", "backend_seconds", "eur_per_million_tokens", "unpriced")


def usage(**more):
    zeros = {name: 0 for name in Usage.model_fields if Usage.model_fields[name].is_required()}
    return Usage(**zeros | {"tenant": "t" * 31, "eur_per_million_tokens": None} | more)


def test_a_table_in_a_pipe_breaks_no_word_and_no_row(capsys):
    print_table([usage(requests=10**12)], COLUMNS, as_json=False)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(COLUMNS).replace("_", " ").split()
    assert str(10**12) in row and "t" * 31 in row
