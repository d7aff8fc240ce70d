"""Strict YAML that knows its lines.

A subset on purpose: mappings, lists and scalars. No anchors or aliases (billion laughs), no tags, no merge keys, no
duplicate keys, one document. Scalars follow the YAML 1.2 core schema where 1.1 surprises: `NO` is Norway and not false,
`012` and `12:30` are text, and so are dates.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from policy.errors import PolicyDocumentError, Problem

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 24

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
        raise PolicyDocumentError(Problem(last, "", f"{len(text)} characters, at most {MAX_CHARACTERS} are read"))
    try:
        _refuse_marks(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise PolicyDocumentError(Problem(line, "", f"not YAML: {error.problem}")) from None
    except yaml.YAMLError as error:
        raise PolicyDocumentError(Problem(0, "", f"not YAML: {error}")) from None
    if root is None:
        raise PolicyDocumentError(Problem(1, "", "the document is empty"))
    lines: dict[Path, int] = {}
    return MarkedYaml(_value(root, (), lines), MappingProxyType(lines))


def _refuse_marks(text: str) -> None:
    """One pass over the event stream, which is flat: deep nesting cannot exhaust the stack here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise PolicyDocumentError(Problem(line, "", "anchors and aliases are not allowed"))
        if tag := getattr(event, "tag", None):
            raise PolicyDocumentError(Problem(line, "", f"tag {tag} is not allowed"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise PolicyDocumentError(Problem(line, "", f"nested deeper than {MAX_DEPTH} levels"))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _value(node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _scalar(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), lines) for index, item in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise PolicyDocumentError(Problem(line, dotted(path), "a key must be plain text"))
        key = key_node.value
        if key in result:
            raise PolicyDocumentError(Problem(line, dotted((*path, key)), "this key stands twice"))
        lines[(*path, key)] = line
        result[key] = _value(value_node, (*path, key), lines)
    return result


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
