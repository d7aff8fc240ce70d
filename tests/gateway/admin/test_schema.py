"""schemathesis against the published document: what falls over, and what is answered but not said there.

A few calls of each operation in every run, many in `make campaign`.
"""

import json
from itertools import cycle

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)

from gateway.admin.app import MAX_BODY, PREFIX, build_admin
from tests.conftest import how_many
from tests.gateway.admin.conftest import BODIES

EXAMPLES = how_many(3, 2)  # of each operation, once by its schema and once against it
ELSEWHERE = [
    positive_data_acceptance,  # a document cannot say that a tenant exists
    ignored_auth,  # asked of every route in test_app
    missing_required_header,
    unsupported_method,
]
DOCUMENT = build_admin(None).openapi()
OPERATIONS = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if path not in {"/login", "/callback", "/device-login"}  # in tests with a provider
]


class Mounted:
    """An application where the document says that it is; which one, is set for each test."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app({**scope, "root_path": PREFIX}, receive, send)


@pytest.fixture(scope="module")
def loaded():
    """The published document, fetched and read once: that takes longer than the calls of a test."""
    mounted = Mounted(build_admin(None))
    return mounted, schemathesis.openapi.from_asgi(f"{PREFIX}/openapi.json", mounted)


@pytest.fixture
def schema(app, loaded):
    mounted, found = loaded
    mounted.app = app
    return found


def statuses(schema, method, path, headers, objects, mode):
    """Of calls with generated values, every second one on what is really there. What is not as it says, raises."""
    seen, really = set(), cycle((True, False))

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(schema[path][method].as_strategy(generation_mode=mode))
    def call(case):
        real = next(really)
        if real:
            case.path_parameters = {name: objects[name] for name in case.path_parameters or {}}
        unsure = [negative_data_rejection] if real or mode is GenerationMode.POSITIVE else []
        answer = case.call(headers=headers)
        if answer.status_code == 413:  # a refusal too, which schemathesis does not count as one
            unsure = [negative_data_rejection]
        case.validate_response(answer, excluded_checks=[*ELSEWHERE, *unsure])
        seen.add(answer.status_code)

    call()
    assert not {status for status in seen if status >= 500}
    return seen


@pytest.mark.campaign
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_an_operators_calls_never_fall_over_and_are_answered_as_the_document_says(
    schema, objects, operator, method, path, record_property
):
    record_property("examples", EXAMPLES * len(GenerationMode))
    seen = [statuses(schema, method, path, operator, objects, mode) for mode in GenerationMode]
    if method == "GET" and not path.startswith(("/staff/{", "/operator/changes/{")):
        assert 200 in seen[0]


@pytest.mark.campaign
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_strangers_calls_are_refused_as_the_document_says(schema, objects, method, path, record_property):
    record_property("examples", EXAMPLES * len(GenerationMode))
    for mode in GenerationMode:
        assert statuses(schema, method, path, {}, objects, mode) <= {400, 401, 422}


def test_every_change_and_every_object_says_its_state_its_key_and_its_errors():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            assert answers.keys() >= {"400", "403", "404", "422", "500", "503"}
            for status, answer in answers.items():
                if status >= "4":
                    (media,) = answer["content"].items()
                    assert media == (
                        "application/problem+json",
                        {"schema": {"$ref": "#/components/schemas/Problem"}},
                    )
            named = {parameter["name"] for parameter in operation["parameters"]}
            assert ("Idempotency-Key" in named) == (
                method in {"post", "put"} and path not in {"/bootstrap", "/logout", "/device-login"}
            ), path
    tenant = DOCUMENT["paths"]["/tenants/{tenant}"]["get"]
    assert tenant["responses"]["200"]["headers"]["ETag"]["required"]
    assert tenant["parameters"][0]["schema"]["pattern"] == "^[a-z][a-z0-9-]{1,30}$"
    for body, field in (("NewTenant", "id"), ("NewProject", "id"), ("NewKey", "project")):
        assert DOCUMENT["components"]["schemas"][body]["properties"][field]["pattern"] == "^[a-z][a-z0-9-]{1,30}$"
    assert json.dumps(DOCUMENT).count("#/components/schemas/HTTPValidationError") == 0


@pytest.mark.parametrize("on", ["0", "0.0", "1e9", "20261129", "-1", "inf", "tomorrow", "2026-13-01"])
def test_a_day_is_a_text_in_iso_8601_and_no_number_that_can_be_read_as_one(client, operator, on):
    assert client.get(f"/regions?on={on}", headers=operator).status_code == 422
    assert client.get(f"/tenants/acme/usage?since={on}", headers=operator).status_code == 422
    assert client.get("/regions?on=2026-11-29", headers=operator).status_code == 200


@pytest.mark.parametrize("limit", ["1.0", "%2B1", "1e1", "0x1", "1_0", "%201", "true"])
def test_a_number_in_an_address_is_written_in_digits(client, operator, limit):
    assert client.get(f"/tenants?limit={limit}", headers=operator).status_code == 422
    assert client.get("/tenants?limit=1", headers=operator).status_code == 200


@pytest.mark.parametrize("end", [0, 4102444800, 4102444800000, "4102444800", "4102444800.0", True])
def test_the_end_of_a_key_is_a_time_with_its_zone_and_never_a_number(client, operator, objects, end):
    made = client.post("/tenants/acme/keys", headers=operator, json={"project": "support", "expires_at": end})
    assert made.status_code == 422
    assert "body.expires_at" in made.json()["errors"]


@pytest.mark.parametrize("body", [b"\xff\xfe", b'"\\ud800"', b"{", b"[" * 100_000, b"", b'{"id": "\xed\xa0\x80"}'])
def test_a_body_that_is_no_json_is_the_callers_mistake(client, operator, body):
    answer = client.post("/tenants", headers={**operator, "content-type": "application/json"}, content=body)
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_that_is_too_large_is_not_read(client, operator):
    def pieces():
        nonlocal sent
        for _ in range(64):
            sent += 1 << 20
            yield b" " * (1 << 20)

    for content in (b'{"id": "' + b"x" * MAX_BODY + b'"}', pieces()):
        sent = 0
        answer = client.post("/tenants", headers={**operator, "content-type": "application/json"}, content=content)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/nothing", "/tenants/acme/nothing", "/v2", "/tenants/acme/keys/x/y/z"])
def test_where_there_is_nothing_the_answer_is_a_problem_too(client, operator, path):
    answer = client.get(path, headers=operator)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert client.delete("/tenants", headers=operator).headers["content-type"] == "application/problem+json"
    assert client.delete("/tenants", headers=operator).status_code == 405


def test_every_route_with_a_body_has_an_example_in_the_tests():
    with_body = {
        operation["operationId"].removesuffix("_of_staff")
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert with_body == BODIES.keys()
