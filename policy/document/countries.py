"""The built-in country table, `countries.yaml`, as `CountrySets`.

Reading the package's own resource is this room's only file access outside the CLI. The table lives here, and not in the
catalogue of `regions`, because the meaning of `EEA` in a policy must not depend on who runs the backends; a caller that
keeps a newer table builds its own `CountrySets` and passes that.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from policy.document.marked_yaml import parse_yaml
from policy.facts import CountrySets, Membership


@cache
def builtin_countries() -> CountrySets:
    table = parse_yaml(files("policy.document").joinpath("countries.yaml").read_text(encoding="utf-8")).value
    eu = _memberships(table["eu"])
    return CountrySets.model_validate(
        {
            "version": table["version"],
            "as_of": table["as_of"],
            "known": frozenset(table["known"].split()),
            "eu": eu,
            "eea": eu + _memberships(table["eea"]),
            "adequacy": tuple({"source": f"Commission Decision {row['decision']}", **row} for row in table["adequacy"]),
        }
    )


def _memberships(rows: list[dict[str, Any]]) -> tuple[Membership, ...]:
    return tuple(
        Membership.model_validate(
            {"country": country, "source": row["source"], "valid_from": row["since"], "valid_to": row.get("until")}
        )
        for row in rows
        for country in row["countries"].split()
    )
