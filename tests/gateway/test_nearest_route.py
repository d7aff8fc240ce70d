from pathlib import Path

import pytest

from gateway.nearest_route import MAX_SHOWN, NOT_OFFERED, nearest_route, not_offered, unknown_url
from gateway.server.app import ROUTES
from tests.fakes.lab import lab

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/chat/completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("//v1//chat/completions", CHAT),
        ("/V1/Chat/Completions/", CHAT),
        ("/v1/chat/completion", CHAT),
        ("/v1/embedding", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/v1/model", "/v1/models"),
        ("/openai/deployments/gpt/chat/completions", CHAT),
        ("/v1beta/openai/chat/completions", CHAT),
        ("/v1/engines/small/completions", "/v1/completions"),
        ("/openai/v1/embeddings/", "/v1/embeddings"),
        ("/v1/chat/completions/x", CHAT),
        ("/no/such/place", None),
        ("/v1/audio/transcriptions", None),
        ("/", None),
        ("", None),
    ],
)
def test_the_nearest_route_is_the_one_that_was_meant(path, nearest):
    assert nearest_route(path, ROUTES) == nearest


def test_where_nothing_is_near_all_routes_are_named():
    assert (
        unknown_url("POST", "/no/such/place", ROUTES)
        == f"There is nothing at POST /no/such/place; there are: {', '.join(ROUTES)}"
    )


def test_of_a_path_little_is_named_and_nothing_that_a_terminal_or_a_log_would_act_on():
    said = unknown_url("GET", "/\x1b[31m\r\n<script>?é" + "a" * 5000, ROUTES)
    assert len(said) < MAX_SHOWN + 300
    assert not set("\x1b\r\n<>") & set(said)


async def test_the_answer_names_the_url_and_the_nearest_route_and_no_file(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post({}, path="/v1/v1/chat/completions")
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
        assert answer.error["message"] == (f"There is nothing at POST /v1/v1/chat/completions; did you mean {CHAT}?")


async def test_the_list_of_models_with_a_slash_is_no_model_without_a_name(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.get("/v1/models/")
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
        assert answer.error["message"] == "There is nothing at GET /v1/models/; did you mean /v1/models?"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/admin/v1/tenant", "There is nothing at GET /admin/v1/tenant; did you mean /admin/v1/tenants?"),
        ("/admin/v1/tenants/acme/key", "There is nothing at GET /admin/v1/tenants/…/key; did you mean"
         " /admin/v1/tenants/{tenant}/keys?"),
        ("/admin/v1/tenants/", "There is nothing at GET /admin/v1/tenants/; did you mean /admin/v1/tenants?"),
        ("/admin/v1/xyzzy", "There is nothing at GET /admin/v1/…; the paths are in /admin/v1/openapi.json"),
        ("/admin/v1/tenants/carl@example.org/key", "There is nothing at GET /admin/v1/tenants/…/key; did you mean"
         " /admin/v1/tenants/{tenant}/keys?"),
    ],
)  # fmt: skip
async def test_the_admin_api_names_the_url_and_its_nearest_route(tmp_path, path, said):
    async with lab(tmp_path) as made:
        answer = await made.get(path)
        assert (answer.status, answer.json["detail"]) == (404, said)


@pytest.mark.parametrize("name", NOT_OFFERED)
@pytest.mark.parametrize("form", ["{}", "{}/", "{}/a/b", "/v1{}"])
def test_a_route_of_another_api_is_refused_by_name_with_what_to_use(name, form):
    path = form.format(name).replace("/v1/v1", "/v1")
    said = unknown_url("POST", path, ROUTES)
    assert said == f"{name} is not offered here; {NOT_OFFERED[name]}"


@pytest.mark.parametrize("path", ["/v1/audios", "/v1/chat/completions", "/v1", "/v1/completely", "/other/v1/images"])
def test_other_paths_are_not_taken_for_one(path):
    assert not_offered(path) is None


def test_what_is_to_be_used_instead_is_there():
    named = {word.strip(",;.") for words in NOT_OFFERED.values() for word in words.split() if word.startswith("/v1/")}
    assert named <= set(ROUTES)
    assert not NOT_OFFERED.keys() & set(ROUTES)


def test_the_documentation_lists_each_with_what_to_use():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    assert all(f"| `{name}` | {fix} |" in page for name, fix in NOT_OFFERED.items())
