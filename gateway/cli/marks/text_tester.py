"""The tokenizer that the commands for marks test texts by."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.marks.input_text import NOT_TESTED
from gateway.cli.terminal.shell import fail

if TYPE_CHECKING:
    from gateway.marks.false_alarms import Test


def tester_of(weights: Path) -> "Test":
    """Return the test by a tokenizer on this host. Ends the command with NOT_TESTED if it cannot be read."""
    engine = import_module("backend.cli.marks")  # the engine's packages are imported only here
    try:
        test: Test = engine.tester(weights)
    except (engine.BackendError, OSError) as error:
        what, _, fix = str(error).partition("; ")
        fail(f"--weights {weights}: {what}; {fix or 'name the folder or GGUF file of the marked model'}", NOT_TESTED)
    return test
