"""Spellings that were the only ones a release ago: they still work, with one warning, and no help shows them.

The tables below are all there is of them. They are emptied in the release after 0.2.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import typer


class InFront(NamedTuple):
    """The option's value became the first argument."""

    metavar: str


TENANT = InFront("TENANT")
Options = Mapping[str, "str | InFront"]

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "audit hold": {"place": "create"},
    "audit incident": {"open": "create"},
    "backend": {"register": "create", "token": "create-token"},
    "cell": {"register": "create"},
    "limit": {"set": "update"},
    "person": {"roles": "update", "token": "create-token", "tokens": "list-tokens"},
    "secrets": {"status": "show"},
    "usage": {"prices": "list-prices", "set-price": "create-price"},
}
"""By group: a command's old name and its name."""

_PERIOD: Options = {"--from": "--since", "--to": "--until"}

OPTIONS: Mapping[str, Options] = {
    "audit ai-act": {"--tenant": TENANT, **_PERIOD},
    "audit authority record": {"--tenant": TENANT},
    "audit breach": {"--tenant": TENANT, "--draft": "--output", **_PERIOD},
    "audit dsar": {"--tenant": TENANT},
    "audit erase": {"--tenant": TENANT},
    "audit export": {"--tenant": TENANT, **_PERIOD},
    "audit hold create": {"--tenant": TENANT},
    "audit hold list": {"--tenant": TENANT},
    "audit hold release": {"--tenant": TENANT},
    "audit incident close": {"--tenant": TENANT},
    "audit incident create": {"--tenant": TENANT, **_PERIOD},
    "audit incident list": {"--tenant": TENANT},
    "audit incident notify": {"--tenant": TENANT},
    "audit incident update": {"--tenant": TENANT},
    "audit model record": {"--tenant": TENANT},
    "audit oversight record": {"--tenant": TENANT},
    "audit publish": {"--tenant": TENANT, "--to": "--output"},
    "audit read": {"--tenant": TENANT},
    "audit rectify": {"--tenant": TENANT},
    "audit restrict": {"--tenant": TENANT},
    "audit retention": {"--tenant": TENANT},
    "audit show": {"--tenant": TENANT},
    "audit verify": {"--tenant": TENANT},
    "audit witness submit": {"--tenant": TENANT},
    "backend enrol": {"--out": "--output"},
    "person create": {"--tenant": TENANT},
    "person create-token": {"--tenant": TENANT},
    "person list": {"--tenant": TENANT},
    "person list-tokens": {"--tenant": TENANT},
    "person revoke": {"--tenant": TENANT},
    "person revoke-token": {"--tenant": TENANT},
    "person update": {"--tenant": TENANT},
    "policy withdraw": {"--because": "--reason"},
    "retention run": {"--tenant": TENANT},
    "usage cost": {"--tenant": TENANT},
    "usage export": {"--tenant": TENANT},
    "usage show": {"--tenant": TENANT},
}
"""By command, under its present name: an option's old name, and its name or place."""

FILES: Mapping[str, str] = {"usage export": "--output"}
"""By command: the option that takes what was the first argument, where that can be no tenant's name."""

STAFF = ("person create", "person create-token", "person list-tokens", "person revoke", "person revoke-token",
         "person update")  # fmt: skip
"""Commands that meant the installation's staff where no tenant was named; now that is said as `operator`."""


def accept_old_spellings(command: Any, path: str) -> None:
    """Let `command`, reached by the words `path`, and all below it understand their old spellings too."""
    below = getattr(command, "commands", None)
    if below is None:
        if path in OPTIONS:
            command.parse_args = partial(_parse, command, command.parse_args, path)
        return
    for name, inner in list(below.items()):
        accept_old_spellings(inner, f"{path} {name}")
    if path in COMMANDS:
        command.get_command = partial(_renamed, command.get_command, path)


def _renamed(get_command: Callable[[Any, str], Any], path: str, ctx: Any, name: str) -> Any:
    new = COMMANDS[path].get(name)
    if new is None:
        return get_command(ctx, name)
    _warn([f"'{path} {name}'"], [f"'{path} {new}'"])
    return get_command(ctx, new)


def _parse(command: Any, parse_args: Callable[[Any, list[str]], list[str]], path: str, ctx: Any, args: Any) -> Any:
    words, old, new = rewritten(args, OPTIONS[path])
    if path in FILES and (at := _file_among(words)) is not None:
        file = words.pop(at)
        words, old, new = [*words, FILES[path], file], [*old, "FILE"], [*new, f"{FILES[path]} FILE"]
    if path in STAFF and not ctx.resilient_parsing and _lacks_an_argument(command, ctx, words):
        words, old, new = ["operator", *words], [*old, "no tenant"], [*new, "operator in front of the other words"]
    if old:
        _warn(old, new)
    return parse_args(ctx, words)


def rewritten(args: Sequence[str], options: Options) -> tuple[list[str], list[str], list[str]]:
    """(the words in their present spelling, old spellings among `args`, how each is written now)."""
    front: list[str] = []
    rest: list[str] = []
    changed: dict[str, str] = {}
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        name, equals, value = word.partition("=")
        match options.get(name):
            case None:
                rest.append(word)
            case str(new):
                rest.append(f"{new}{equals}{value}")
                changed[name] = new
            case InFront(metavar):
                given = value if equals else next(words, None)
                if given is None:
                    rest.append(word)  # without its value; the parser says so
                    break
                front.append(given)
                changed[f"{name} {metavar}"] = f"{metavar} in front of the other words"
    return [*front, *rest], list(changed), list(changed.values())


def _file_among(words: Sequence[str]) -> int | None:
    """The index of a word before all options that cannot be a tenant's name but may be a file's."""
    return 0 if words and not words[0].startswith("-") and {".", "/"} & set(words[0]) else None


def _lacks_an_argument(command: Any, ctx: Any, words: Sequence[str]) -> bool:
    """Whether fewer words without an option stand there than the command requires."""
    required = [param for param in command.params if param.param_type_name == "argument" and param.required]
    takes_value = {
        name
        for param in command.params
        if param.param_type_name == "option" and not param.is_flag
        for name in (*param.opts, *param.secondary_opts)
    }
    count, skip = 0, False
    for at, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            count += len(words) - at - 1
            break
        elif word.startswith("-") and len(word) > 1:
            skip = word in takes_value
            if word in ctx.help_option_names:
                return False
        else:
            count += 1
    return count == len(required) - 1


def _warn(old: Sequence[str], new: Sequence[str]) -> None:
    typer.echo(f"warning: old spelling {', '.join(old)}, gone in the next release; write {', '.join(new)}", err=True)
