"""Commands that Typer makes of an app, made once for all tests and not at each call of a `CliRunner`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer import testing


@contextmanager
def kept() -> Iterator[None]:
    """While the block runs."""
    module: Any = testing
    real = module._get_command
    made: dict[tuple[int, int, int], tuple[Any, Any]] = {}

    def command(app: Any) -> Any:
        size = (id(app), len(app.registered_commands), len(app.registered_groups))  # an app of a test may grow
        if size not in made:
            made[size] = (app, real(app))  # with the app, lest another one gets its id
        return made[size][1]

    module._get_command = command
    try:
        yield
    finally:
        module._get_command = real
