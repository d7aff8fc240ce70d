"""The kinds of national numbers: how each is written and checked, what it is called, when it needs a name.

A kind is an entry of `id_rules/*.toml`, one file a country; a new one is an entry and a test. Validators are those of
`python-stdnum` and our own (`id_checks`, named ``own.FUNCTION`` there). A kind's first two letters are its country's.
"""

import tomllib
from collections.abc import Callable, Mapping
from enum import IntEnum
from importlib import import_module
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from policy.redact.ids import checks as id_checks
from policy.redact.text.value_identity import IDENTITIES, NUMBER, SIGNED, Identity


class Needs(IntEnum):
    """What a number needs besides its check: nothing, nothing if written in its own way, a text of its country, a name.

    ``WRITTEN``: with the separators of its country; without them as ``COUNTRY``.
    """

    NOTHING = 0
    WRITTEN = 1
    COUNTRY = 2
    NAME = 3


class IdKind(NamedTuple):
    """One kind.

    Attributes:
        shapes: its letters and digits without separators, 9 a digit and A a letter; none where the check knows.
        is_valid: whether letters and digits without separators hold its check.
        needs: what must speak for a valid number.
        names: what it is called, in small letters without marks; a blank also stands for ``_``, ``-`` or nothing, and
            a ``*`` for the rest of a word.
        written: how its country writes it, as an expression; empty where that is no evidence.
        traits: see `with_trait`.
        home: countries whose language a text must speak, where it speaks any, for a number that nothing names.
        first: the signs that it may begin with; empty for any.
        plausible: what a number that nothing names begins with, as an expression.
        read_as: for a kind without shapes, where a digit stands and a look-alike letter does not.
        same_as: the kind of another country that is the same number.
        identity: when two spellings are one number; an entry names it (`identity.IDENTITIES`) where it is neither
            `NUMBER` nor, with the trait ``signed``, `SIGNED`.
    """

    shapes: tuple[str, ...]
    is_valid: Callable[[str], bool]
    needs: Needs
    names: tuple[str, ...]
    written: str = ""
    traits: frozenset[str] = frozenset()
    home: frozenset[str] = frozenset()
    first: str = ""
    plausible: str = ""
    read_as: tuple[str, ...] = ()
    same_as: str = ""
    identity: Identity = NUMBER


TRAITS = frozenset({
    "date_coded",  # a date of birth is inside, which few random numbers have in addition to a check digit
    "one_in_twenty",  # so many random numbers of its shape pass
    "rare",  # so few pass that a program's number is none by chance
    "unchecked",  # nothing in the number itself speaks for it; a name that others have too is not enough
    "mixed",  # letters and digits in no order: words next to a number would pass
    "own_name_only",  # its check is so weak that a general name is not enough
    "one_sign",  # its separators are never mixed; rows of figures mix them
    "signed",  # its separator denotes the century, or the state
})  # fmt: skip
_STDNUM = "stdnum."
_OWN = "own."


def _read() -> dict[str, IdKind]:
    """Every entry of every file, in the order of the files' names. Raises ValueError naming the entry that is none."""
    kinds: dict[str, IdKind] = {}
    for file in sorted(files("policy.redact.ids").joinpath("id_rules").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".toml"):
            for kind, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
                try:
                    kinds[kind] = _kind(entry)
                except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
                    raise ValueError(f"id_rules/{file.name}: {kind} is no kind: {error}; mend the entry") from None
    return kinds


def _kind(entry: Mapping[str, Any]) -> IdKind:
    traits = frozenset(entry.get("traits", ()))
    if unknown := traits - TRAITS:
        raise ValueError(f"no trait is called {', '.join(sorted(unknown))}")
    return IdKind(
        shapes=tuple(entry["shapes"]),
        is_valid=_check(entry["check"]),
        needs=Needs[entry["needs"].upper()],
        names=tuple(entry["names"]),
        written=entry.get("written", ""),
        traits=traits,
        home=frozenset(entry.get("home", ())),
        first=entry.get("first", ""),
        plausible=entry.get("plausible", ""),
        read_as=tuple(entry.get("read_as", ())),
        same_as=entry.get("same_as", ""),
        identity=_identity(entry.get("identity"), traits),
    )


def _identity(name: str | None, traits: frozenset[str]) -> Identity:
    if name is None:
        return SIGNED if "signed" in traits else NUMBER
    if name not in IDENTITIES:
        raise ValueError(f"no identity is called {name}; it is one of {', '.join(IDENTITIES)}")
    return IDENTITIES[name]


def _check(name: str) -> Callable[[str], bool]:
    if name.startswith(_OWN):
        own: Callable[[str], bool] = getattr(id_checks, name.removeprefix(_OWN))
        return own
    if not name.startswith(_STDNUM):
        raise ValueError(f"{name} is neither a module of stdnum nor own.FUNCTION")
    library: Callable[[str], bool] = import_module(name).is_valid
    return library


IDS: Mapping[str, IdKind] = MappingProxyType(_read())
"""Every kind by its name."""


def with_trait(trait: str) -> frozenset[str]:
    """The kinds that have one of `TRAITS`."""
    return frozenset(kind for kind, each in IDS.items() if trait in each.traits)


UNCHECKED = with_trait("unchecked")
# One number under one name, issued by two states; the language of a text decides which of them it means.
SAME_NUMBER = {kind: each.same_as for kind, each in IDS.items() if each.same_as} | {"li_ahv": "ch_ahv"}


def same_numbers() -> dict[str, tuple[str, ...]]:
    """For each kind that another state issues too, all kinds of `IDS` that are that number, itself included."""
    groups: dict[str, list[str]] = {}
    for kind in IDS:
        groups.setdefault(SAME_NUMBER.get(kind, kind), []).append(kind)
    return {kind: tuple(same) for same in groups.values() if len(same) > 1 for kind in same}
