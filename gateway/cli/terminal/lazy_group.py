"""A command group whose parts are imported when one of them runs, so that ``--help`` and ``--version`` load none."""

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError
from typer.core import TyperCommand, TyperGroup

from gateway.cli.terminal.old_spellings import accept_old_spellings

Command = TyperCommand | TyperGroup


_running: ContextVar[tuple[Any, tuple[str, ...]]] = ContextVar("running", default=(None, ()))
"""The lazy group that runs, and its words."""


def running_command() -> str:
    """The whole name of the command that runs, without that of the program: ``audit hold list``."""
    group, words = _running.get()
    name: list[str] = []
    for word in words:
        if (group := getattr(group, "commands", {}).get(word)) is None:
            break
        name.append(word)
    return " ".join(name)


def running_words() -> tuple[str, ...]:
    """The words of the command line, without the program's."""
    return _running.get()[1]


class LazyCommand(NamedTuple):
    """A group of commands or a single command, and where it is defined."""

    help: str
    """What a listing shows: the first line of the command's own help, which a test compares."""
    sources: tuple[str, ...]
    """``module:attribute`` each: a function, or Typer apps whose commands are joined in the first one."""

    def load(self) -> Command:
        """Import the sources. The command has no name yet."""
        first, *others = (_attribute(source) for source in self.sources)
        if not isinstance(first, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command()(first)
            command: Command = typer.main.get_command(alone)  # type: ignore[assignment]  # as Typer makes it
            return command
        group = typer.main.get_group(first)
        for other in others:
            group.commands.update(typer.main.get_group(other).commands)
        return group


def _attribute(source: str) -> Any:
    module, _, attribute = source.partition(":")
    return getattr(import_module(module), attribute)


class _Commands(MutableMapping[str, Command]):
    """Commands by name: those given, and `parts`, each loaded when it is first asked for."""

    def __init__(self, given: Mapping[str, Any], parts: Mapping[str, LazyCommand]) -> None:
        self._loaded: dict[str, Command] = dict(given)
        self._parts = parts

    def __getitem__(self, name: str) -> Command:
        if name not in self._loaded:
            command = self._parts[name].load()
            command.name = name
            accept_old_spellings(command, name)
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._loaded, *self._parts]))

    def __len__(self) -> int:
        return len(self._parts.keys() | self._loaded.keys())


def in_words(error: ClickException) -> str:
    """What was wrong with a command, and how to go on."""
    said = error.format_message().rstrip(".")
    if "; " in said:  # its fix is said already
        return said
    context = getattr(error, "ctx", None)
    return f"{said}; see {context.command_path if context else 'domicile'} --help"


def lazy_group(parts: Mapping[str, LazyCommand], prepare: Callable[[Any], None]) -> type[TyperGroup]:
    """The class for ``typer.Typer(cls=…)`` of a group with `parts`.

    `prepare` is called with Typer's context before a command is run.
    """

    class LazyGroup(TyperGroup):
        _listing = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            names = [name for name in self.commands if name not in parts]
            given = {name: self.commands[name] for name in names}
            self.commands: Any = _Commands(given, parts)

        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            _running.set((self, tuple(args)))
            return super().parse_args(ctx, args)

        def main(self, *arguments: Any, **options: Any) -> Any:
            """As Typer's, with mistakes of usage in the form of all errors: `error: <what>; <how to fix it>`."""
            if not options.get("standalone_mode", True):
                return super().main(*arguments, **options)
            try:
                status = super().main(*arguments, **options | {"standalone_mode": False})
            except NoArgsIsHelpError as error:
                error.show()
                sys.exit(error.exit_code)
            except ClickException as error:
                typer.echo(f"error: {in_words(error)}", err=True)
                sys.exit(error.exit_code)
            except typer.Abort:
                typer.echo("error: stopped; nothing more was done", err=True)
                sys.exit(1)
            sys.exit(status if isinstance(status, int) else 0)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """For a listing, a command that has nothing but its name and help."""
            if self._listing and cmd_name in parts:
                return TyperCommand(cmd_name, help=parts[cmd_name].help)
            if not self._listing:
                prepare(ctx)
            return self.commands.get(cmd_name)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._listing = True
            try:
                super().format_help(ctx, formatter)
            finally:
                self._listing = False

    return LazyGroup
