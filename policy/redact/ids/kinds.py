"""Kinds of national numbers: format, check, names, and the context that each needs.

A kind is an entry of `id_rules/*.toml`, with one file per country; a new kind needs an entry and a test. Validators
come from `python-stdnum` and from `checks`, written there as ``own.FUNCTION``. The first two letters of a kind are its
country code.
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
    """What a number needs besides a valid check.

    ``NOTHING``: no context. ``WRITTEN``: the separators of its country; without them as ``COUNTRY``. ``COUNTRY``: a
    text of its country. ``NAME``: a name next to it.
    """

    NOTHING = 0
    WRITTEN = 1
    COUNTRY = 2
    NAME = 3


class IdKind(NamedTuple):
    """One kind.

    Attributes:
        shapes: letters and digits without separators, 9 a digit and A a letter; empty if the check decides.
        is_valid: whether letters and digits without separators pass its check.
        needs: context that a valid number needs.
        names: its names, in lower case without diacritics. A space also matches ``_``, ``-`` or nothing; ``*`` matches
            the rest of a word.
        written: pattern of its country's format; empty if the format is no evidence.
        traits: see `with_trait`.
        home: countries. If the text uses a known language, a number without a name counts only in a text of one of
            them.
        first: possible first characters; empty for any.
        plausible: pattern that the beginning of a number without a name must match.
        read_as: for a kind without shapes: shapes that show where a look-alike letter is read as a digit.
        same_as: kind of another country that is the same number.
        identity: when two spellings are one number. Entries name it (`value_identity.IDENTITIES`) if it is not the
            default, which is `SIGNED` with the trait ``signed`` and `NUMBER` without.
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
    "date_coded",  # contains a date of birth, which few random numbers have in addition to a check digit
    "one_in_twenty",  # one in twenty random numbers of its shape is valid
    "rare",  # so few random numbers are valid that a generated number does not pass by chance
    "unchecked",  # the number has no check; a name that it shares with other kinds is not enough
    "mixed",  # letters and digits in any order: adjacent words would pass
    "own_name_only",  # its check is so weak that a general name is not enough
    "one_sign",  # its separators are never mixed; rows of figures mix them
    "signed",  # its separator denotes the century or the state
})  # fmt: skip
_STDNUM = "stdnum."
_OWN = "own."


def _read() -> dict[str, IdKind]:
    """Read every entry of every file, in the order of file names.

    Raises ValueError with the name of an invalid entry.
    """
    kinds: dict[str, IdKind] = {}
    for file in sorted(files("policy.redact.ids").joinpath("id_rules").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".toml"):
            for kind, entry in tomllib.loads(file.read_text(encoding="utf-8")).items():
                try:
                    kinds[kind] = _kind(entry)
                except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
                    raise ValueError(
                        f"id_rules/{file.name}: {kind} is not a valid kind: {error}; correct the entry"
                    ) from None
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
"""All kinds by name."""


def with_trait(trait: str) -> frozenset[str]:
    """Return the kinds that have `trait`, one of `TRAITS`."""
    return frozenset(kind for kind, each in IDS.items() if trait in each.traits)


UNCHECKED = with_trait("unchecked")
# Numbers issued by two countries under one name. The language of a text decides between the two kinds.
SAME_NUMBER = {kind: each.same_as for kind, each in IDS.items() if each.same_as} | {"li_ahv": "ch_ahv"}


def same_numbers() -> dict[str, tuple[str, ...]]:
    """Return, for each kind that another country also issues, all kinds that are the same number, including itself."""
    groups: dict[str, list[str]] = {}
    for kind in IDS:
        groups.setdefault(SAME_NUMBER.get(kind, kind), []).append(kind)
    return {kind: tuple(same) for same in groups.values() if len(same) > 1 for kind in same}
