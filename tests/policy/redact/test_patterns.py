"""Regular expressions mean the same on every Python that we run on."""

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from re import _constants, _parser  # type: ignore[attr-defined]

import pytest

import policy.redact

MODULES = [f"policy.redact.{module.name}" for module in iter_modules(policy.redact.__path__)]
SINGLE = {_constants.IN, _constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY}


def patterns(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from patterns(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from patterns(one)


def repeated_possessively(parsed: object) -> Iterator[object]:
    """The groups, not single characters, that a possessive quantifier repeats."""
    if isinstance(parsed, _parser.SubPattern):
        for op, argument in parsed:
            if op is _constants.POSSESSIVE_REPEAT:
                body = argument[2]
                if len(body) != 1 or body[0][0] not in SINGLE:
                    yield body
            yield from repeated_possessively(argument)
    elif isinstance(parsed, (list, tuple)):
        for one in parsed:
            yield from repeated_possessively(one)


def test_the_search_finds_what_it_looks_for():
    assert list(repeated_possessively(_parser.parse("a(?:b|[cd]++(?:ef)*+)x")))
    assert not list(repeated_possessively(_parser.parse("a++[bc]*+.?+(?>(?:ef)*)")))


@pytest.mark.parametrize("name", MODULES)
def test_no_group_is_repeated_possessively_which_matches_wrongly_before_python_3_11_5(name):
    """gh-106052. It let e-mail addresses through a stream on Debian 12's Python."""
    found = [p for value in vars(import_module(name)).values() for p in patterns(value)]
    for pattern in found:
        assert not list(repeated_possessively(_parser.parse(pattern.pattern, pattern.flags & re.VERBOSE))), pattern
