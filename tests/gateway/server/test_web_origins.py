"""Web pages: those that a project lists may call for it and read what is meant for them; no other may, and none by
default."""

import pytest
import pytest_asyncio

from gateway.database.errors import InvalidValue
from tests.fakes.lab import chat, lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP, OTHER, ELSEWHERE = "https://app.example.org", "http://localhost:5173", "https://evil.example.net"


def set_up(made):
    made.tenant("acme")
    made.project("acme", "other")
    made.tenant("globex")
    made.control.set_origins("acme", "main", [APP])
    made.control.set_origins("globex", "main", [OTHER])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    async with lab(tmp_path_factory.mktemp("web"), set_up=set_up) as made:
        yield made


async def preflight(made, origin, path="/v1/chat/completions", method="POST", asked="authorization,content-type"):
    headers = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": asked}
    async with made.http.options(made.base + path, headers=headers) as answer:
        return answer.status, answer.headers


def allowed(headers):
    return headers.get("access-control-allow-origin")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/files/f", "/api/chat"])
@pytest.mark.parametrize("origin", [APP, OTHER])
async def test_a_preflight_is_answered_for_an_origin_that_some_project_lists(made, path, origin):
    status, headers = await preflight(made, origin, path, asked="authorization, x-stainless-os")
    assert (status, allowed(headers)) == (204, origin)
    assert headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert "origin" in headers["vary"] and "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("origin", [ELSEWHERE, "null", "*", f"{APP}.evil.net", APP.upper(), f"{APP}/", ""])
async def test_no_other_page_gets_an_answer(made, origin):
    status, headers = await preflight(made, origin)
    assert (status, allowed(headers)) == (405, None)
    answer = await made.post(chat("hi"), headers={"origin": origin})
    assert (answer.status, allowed(answer.headers)) == (200, None)


@pytest.mark.parametrize("path", ["/admin/v1/tenants", "/metrics", "/healthz", "/readyz", "/admin/v1/openapi.json"])
async def test_what_is_an_operators_is_for_no_page(made, path):
    _, headers = await preflight(made, APP, path, "GET")
    assert allowed(headers) is None
    async with made.http.get(made.base + path, headers={"origin": APP}) as answer:
        assert allowed(answer.headers) is None


async def test_headers_that_no_page_can_name_are_not_echoed(made):
    status, headers = await preflight(made, APP, asked="a" * 2000)
    assert status == 204 and "access-control-allow-headers" not in headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_reads_the_answer_and_its_receipt(made, stream):
    answer = await made.post(chat("hi", stream=stream), headers={"origin": APP})
    assert (answer.status, allowed(answer.headers)) == (200, APP)
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    ours = {name.lower() for name in answer.headers if name.lower().startswith("x-")} - {"x-accel-buffering"}
    assert ours <= set(exposed)
    assert (await made.post(chat("hi"))).headers.get("access-control-allow-origin") is None


async def test_a_page_reads_errors_and_lists_too(made):
    wrong = await made.post({"model": "small"}, headers={"origin": APP})
    assert (wrong.status, allowed(wrong.headers)) == (400, APP)
    unknown = await made.post(chat("hi"), headers={"origin": APP}, key="dom_live_x")
    assert (unknown.status, allowed(unknown.headers)) == (401, APP)
    known = made.key()
    for path, key, status in (("/v1/models", known, 200), ("/v1/models/none", known, 404), ("/v1/files", "x", 401)):
        headers = {"origin": APP, "authorization": f"Bearer {key}"}
        async with made.http.get(made.base + path, headers=headers) as answer:
            assert (answer.status, allowed(answer.headers)) == (status, APP)


@pytest.mark.parametrize(("origin", "key"), [(OTHER, "acme/main"), (APP, "globex/main"), (APP, "acme/other")])
async def test_a_page_of_another_project_is_refused_before_its_body_is_read(made, origin, key):
    before = len(made.backends["acme-1"].bodies)
    for path, body in (("/v1/chat/completions", chat("hi")), ("/v1/messages", {"max_tokens": 5, **chat("hi")})):
        answer = await made.post(body, path, key=key, headers={"origin": origin})
        assert answer.status == 403 and answer.error["message"].endswith("call from a server")
        assert allowed(answer.headers) == origin
    headers = {"origin": origin, "authorization": f"Bearer {made.key(key)}"}
    async with made.http.get(made.base + "/v1/models", headers=headers) as answer:
        assert answer.status == 403
    assert len(made.backends["acme-1"].bodies) == before


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example.org", "https://app.example.org/", "https://App.example.org", "https://*.example.org",
               "https://app.example.org:443", "https://user@app.example.org", "ftp://", "", "https://a b"],
)  # fmt: skip
async def test_what_is_no_single_origin_is_refused(made, origin):
    with pytest.raises(InvalidValue, match="no origin of a web page; "):
        made.control.set_origins("acme", "main", [origin])


async def test_an_origin_that_is_taken_off_the_list_may_call_no_more_within_a_second(made):
    made.control.set_origins("acme", "other", ["https://brief.example.org"])
    await made.taken_over()
    assert (await preflight(made, "https://brief.example.org"))[0] == 204
    made.control.set_origins("acme", "other", [])
    await made.taken_over()
    assert (await preflight(made, "https://brief.example.org"))[0] == 405
    assert [event["type"] for event in made.acts() if event["type"].startswith("admin.origins")] == []


async def test_a_gateway_whose_projects_list_none_answers_no_preflight(tmp_path):
    async with lab(tmp_path) as made:
        assert (await preflight(made, APP))[0] == 405
        assert allowed((await made.post(chat("hi"), headers={"origin": APP})).headers) is None
