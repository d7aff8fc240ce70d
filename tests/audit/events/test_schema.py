import json
from pathlib import Path

import pytest

from audit.events.leaf import EVENT_CLASSES
from audit.events.schema import event_schema
from audit.events.stamp import STAMP_FIELDS
from tests.audit.conftest import Home, accepted, completed

PUBLISHED = Path(__file__).parents[3] / "docs/audit-event.schema.json"


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text()) == event_schema()


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_is_in_the_schema_with_its_stamp_and_admits_nothing_else(cls: type) -> None:
    model = event_schema()["$defs"][cls.__name__]
    assert model["additionalProperties"] is False
    assert set(STAMP_FIELDS) <= set(model["properties"])
    assert {*STAMP_FIELDS, "type"} <= set(model["required"])
    assert len(model["required"]) == len(set(model["required"]))
    assert "null" not in json.dumps(model)


async def test_a_real_leaf_has_only_fields_of_the_schema_and_all_that_it_requires(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r"))
        await log.append(completed("r"))
    for leaf in [*home.events("acme"), *home.events("_system")]:
        schema = event_schema()
        name = schema["discriminator"]["mapping"][leaf["type"]].rpartition("/")[2]
        model = schema["$defs"][name]
        assert set(model["required"]) <= set(leaf) <= set(model["properties"])
