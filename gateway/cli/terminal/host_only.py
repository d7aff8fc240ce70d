"""Commands without a remote mode, and why: each acts on the host of an installation, or on none."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FILES: Final = "works on the files of an installation"
KEYS: Final = "works on the keys of an installation, which leave its host on no way"
LOG: Final = (
    "reads the log itself, so that no gateway has to be trusted; for a copy to verify elsewhere: domicile audit export"
)
RECORD: Final = "works on the log's own files"
STATEMENT: Final = "puts on record what the installation's owner states, under the key of its host"

HOST_ONLY: Final[Mapping[str, str]] = {
    "init": FILES,
    "up": "runs the gateway of an installation",
    "doctor": "reads the configuration and the environment of a gateway's host",
    "config": "reads the configuration of a gateway's host",
    "database": FILES,
    "secrets": KEYS,
    "backup": FILES,
    "cell": "carries signed bundles between the folders of cells, and allows no cell over a network",
    "retention": "deletes by the periods of a gateway's host, whose gateway does it every night",
    "person bootstrap": "makes the first person of an installation, before anybody can log in to it",
    "key rekey": KEYS,
    "tenant update": "opens the private values of a tenant with the keys of the host",
    "backend enrol": KEYS,
    "backend create-token": KEYS,
    "backend scrub": "asks backends with the certificates of the host",
    "backend replay": "asks backends with the certificates of the host, and opens private values with its keys",
    "mark delete": KEYS,
    "mark measure": "opens the private values of a tenant with the keys of the host",
    "region create": "writes the catalogue file of a host, which its gateways read",
    "audit ai-act": LOG,
    "audit retention": "deletes by the periods of a gateway's host, whose gateway does it every night",
    "audit verify": LOG,
    "audit show": LOG,
    "audit publish": RECORD,
    "audit receipt": LOG,
    "audit anchor": RECORD,
    "audit clock": "compares the clock of the host",
    "audit selftest": RECORD,
    "audit rotate": KEYS,
    "audit timestamp": RECORD,
    "audit witness submit": RECORD,
    "audit breach": "reads the records of all tenants",
    "audit oversight": STATEMENT,
    "audit model": STATEMENT,
    "audit authority": STATEMENT,
}
"""By command, or by group for all of it."""

OF_NO_INSTALLATION: Final = frozenset(
    {
        "demo", "plan", "login", "logout", "evidence verify", "redact", "mark verify", "policy new", "policy check",
        "policy test", "audit witness serve", "backend serve", "backend fetch",
    }
)  # fmt: skip
"""Commands that work on their arguments alone, so that where somebody is logged in changes nothing."""


WITHOUT_A_FOLDER: Final = frozenset(
    {"init", "up", "doctor", "config", "backup check", "backup restore", "audit ai-act"}
)
"""Commands of `HOST_ONLY` that are of use without a folder: a login elsewhere does not stop them, `DOMICILE_URL`
does."""


def why_host_only(command: str, default: str | None = FILES) -> str | None:
    """Reason for a command by its whole name, by its own entry or its group's; `default` for one that has none."""
    return next((HOST_ONLY[name] for name in _names(command) if name in HOST_ONLY), default)


def check_place() -> None:
    """End the command that runs, if it acts on its host alone and the user means an installation elsewhere."""
    from gateway.cli.terminal.lazy_group import running_command, running_words
    from gateway.cli.terminal.shell import DEFAULT_DATA, URL_VARIABLE, refuse_elsewhere, remote_url

    command, words = running_command(), running_words()
    if why_host_only(command, None) is None or {"--help", "--log"} & {word.partition("=")[0] for word in words}:
        return
    if not WITHOUT_A_FOLDER.isdisjoint(_names(command)):
        url = os.environ.get(URL_VARIABLE)
    else:
        url = remote_url(Path(_given(words, "--data") or os.environ.get("DOMICILE_DATA") or DEFAULT_DATA))
    if url:
        refuse_elsewhere(command, url)


def _names(command: str) -> list[str]:
    """Names of the command and of the groups that it is in."""
    words = command.split()
    return [" ".join(words[:end]) for end in range(len(words), 0, -1)]


def _given(words: Sequence[str], option: str) -> str | None:
    """The value of an option on the command line."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else after
    return None
