"""Strict YAML that knows its lines.

A subset on purpose: mappings, lists and scalars. No anchors or aliases (billion laughs), no tags, no merge keys, no
duplicate keys, one document. Scalars follow the YAML 1.2 core schema where 1.1 surprises: `NO` is Norway and not false,
`012` and `12:30` are text, and so are dates.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from policy.errors import PolicyDocumentError, Problem

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 24
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels; use fewer"
MAX_NODES = 50_000
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, ten times as fast, where PyYAML was built with it, as its wheels are."""

Path = tuple[str | int, ...]

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class MarkedYaml:
    """A parsed document and the line (from 1) on which each path in it begins."""

    value: Any
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Line of the longest known beginning of `path`."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return 0


def parse_yaml(text: str) -> MarkedYaml:
    """Read one document. Raises PolicyDocumentError naming the line."""
    if len(text) > MAX_CHARACTERS:
        last = text.count("\n", 0, MAX_CHARACTERS) + 1
        raise PolicyDocumentError(
            Problem(last, "", f"{len(text)} characters are too many; write at most {MAX_CHARACTERS}")
        )
    try:
        return _Reader(yaml.parse(text, Loader=LOADER)).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        if "nesting depth" in str(error.problem):  # libyaml's own bound, found while it reads ahead
            raise PolicyDocumentError(Problem(line, "", TOO_DEEP)) from None
        raise PolicyDocumentError(Problem(line, "", f"not YAML: {error.problem}; correct the syntax")) from None
    except yaml.YAMLError as error:
        raise PolicyDocumentError(Problem(0, "", f"not YAML: {error}; correct the syntax")) from None


class _Reader:
    """Builds the value from the stream of events, in one pass. Each step is short, so that no thread waits for one."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._lines: dict[Path, int] = {}
        self._nodes = 0

    def document(self) -> MarkedYaml:
        value: Any = None
        found = False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found:
                    raise PolicyDocumentError(
                        Problem(_line(event), "", "a second document begins here; write one document")
                    )
                value, found = self._value(next(self._events), (), 1), True
        if not found:
            raise PolicyDocumentError(Problem(1, "", "the document is empty; begin with policy: and version:"))
        return MarkedYaml(value, MappingProxyType(self._lines))

    def _value(self, event: yaml.Event, path: Path, depth: int) -> Any:
        self._refuse_marks(event, depth)
        self._lines.setdefault(path, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else _scalar(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth)
        result: dict[str, Any] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            self._refuse_marks(key, depth)
            if not isinstance(key, yaml.ScalarEvent):
                raise PolicyDocumentError(Problem(_line(key), dotted(path), "a key is not plain text; write a word"))
            name = key.value
            if name in result:
                raise PolicyDocumentError(
                    Problem(_line(key), dotted((*path, name)), "this key is given twice; remove one")
                )
            self._lines[(*path, name)] = _line(key)
            result[name] = self._value(next(self._events), (*path, name), depth + 1)
        return result

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        return items

    def _refuse_marks(self, event: yaml.Event, depth: int) -> None:
        line = _line(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise PolicyDocumentError(Problem(line, "", f"more than {MAX_NODES} keys and values; write fewer"))
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise PolicyDocumentError(Problem(line, "", "anchors and aliases are not allowed; write the value out"))
        if tag := getattr(event, "tag", None):
            raise PolicyDocumentError(Problem(line, "", f"tag {tag} is not allowed; remove it"))
        if isinstance(event, yaml.CollectionStartEvent) and depth > MAX_DEPTH:
            raise PolicyDocumentError(Problem(line, "", TOO_DEEP))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _scalar(text: str) -> Any:
    if text.lower() in _CONSTANTS and text in (text.lower(), text.capitalize()):
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def dotted(path: Path) -> str:
    """``("tests", 0, "name")`` as ``tests[0].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
