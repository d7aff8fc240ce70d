"""An installation's own catalogue file: adds regions and operators, and keeps everything else in it as written.

The file may say ``extends: domicile``: then it extends the catalogue that comes with the package, whose rows of
other ids hold as well.
"""

import json
import re
from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from policy.errors import invalid_value
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.rows import Operator, Region, Row
from regions.errors import CatalogueError

EMPTY = """\
# Places where this installation's backends run, and who controls them; see docs/regions.md.
version: ""
extends: domicile

operators:

regions:
"""
_VERSION = re.compile(r"^version:.*$", re.MULTILINE)


def with_place(
    text: str | None,
    place: Mapping[str, object],
    operator: Mapping[str, object] | None,
    day: date,
    names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The catalogue `text`, None for none yet, with `place`, the members of a `Region`, and `operator`, those of an
    `Operator`, where that is new. `names`: what an error calls a member, where that is not its own name. Its version
    becomes `day`, with a number from the second change of a day on.

    Raises CatalogueError where what comes of it is no catalogue, as where an id is taken or a country there is not.
    """
    region = _checked(Region, place, names)
    changed = EMPTY if text is None else text
    if operator is not None:
        changed = _with_row(changed, "operators", _checked(Operator, operator, names))
    changed = _with_row(changed, "regions", region)
    version = _next_version("" if text is None else Catalogue.own_version(text), day)
    changed = _VERSION.sub(f"version: {json.dumps(version)}", changed, count=1)
    Catalogue.parse(changed)
    return changed


def _checked(kind: type[Row], members: Mapping[str, object], names: Mapping[str, str]) -> dict[str, Any]:
    try:
        return kind.model_validate(members).model_dump(mode="json", exclude_defaults=True)
    except ValidationError as error:
        problems = {
            f"{names.get(str(item['loc'][0]), item['loc'][0])}: {invalid_value(item)}"
            for item in error.errors(include_url=False)
        }
        raise CatalogueError("; ".join(sorted(problems))) from None


def _with_row(text: str, section: str, row: Mapping[str, object]) -> str:
    """`row` at the end of a section that is written as a block."""
    lines = text.splitlines()
    try:
        begin = next(number for number, line in enumerate(lines) if re.match(rf"{section}:\s*(#.*)?$", line))
    except StopIteration:
        raise CatalogueError(
            f"the catalogue has no list of {section} to which a row could be added; write the row into it by hand"
        ) from None
    end = begin + 1
    for number in range(begin + 1, len(lines)):
        if re.match(r"[^\s#-]", lines[number]):
            break
        if lines[number].strip() and not lines[number].startswith("#"):
            end = number + 1
    items = [found[1] for line in lines[begin + 1 : end] if (found := re.match(r"(\s*)- ", line))]
    indent = items[0] if items else "  "
    written = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in row.items()]
    added = [f"{indent}{'- ' if at == 0 else '  '}{line}" for at, line in enumerate(written)]
    return "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"


def _next_version(before: str, day: date) -> str:
    if before != day.isoformat() and not before.startswith(f"{day}."):
        return day.isoformat()
    _, _, number = before.partition(".")
    return f"{day}.{int(number) + 1 if number.isdecimal() else 2}"
