"""What clients do wrong: each refusal names the field, and another's file or batch is as good as none."""

import gzip
import io
import json

import aiohttp
import pytest

from tests.gateway.batches.conftest import CHAT, begin, client, gateway, jsonl, line, over, upload

BOUNDS = {"batches": {"max_file_bytes": 4096, "max_lines": 10, "max_tenant_bytes": 6000, "max_active": 2}}


async def send(made, content=b"", *, fields=(("purpose", "batch"),), key="acme/main", name="a.jsonl", headers=None):
    """Upload a form as it is given."""
    form = aiohttp.FormData(default_to_multipart=True)
    for field, value in fields:
        form.add_field(field, value)
    if content is not None:
        form.add_field("file", content, filename=name)
    sent = {"authorization": f"Bearer {made.keys.get(key, key)}", **(headers or {})}
    async with made.http.post(f"{made.base}/v1/files", data=form, headers=sent) as response:
        return response.status, json.loads(await response.read())


async def asked(made, method, path, key="acme/main", body=None):
    headers = {"authorization": f"Bearer {made.keys.get(key, key)}"}
    data = None if body is None else io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with made.http.request(method, made.base + path, headers=headers, data=data) as response:
        return response.status, await response.read()


def stored(made):
    """Rows of files and their parts, whatever their state."""
    with made.control._database.engine.connect() as connection:
        return [
            connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
            for table in ("stored_file", "file_part")
        ]


@pytest.mark.parametrize(
    ("content", "fields", "status", "code", "param"),
    [
        (b"", [("purpose", "batch")], 400, "empty_file", "file"),
        (b"\n \n\r\n", [("purpose", "batch")], 400, "empty_file", "file"),
        (gzip.compress(b"{}", mtime=0), [("purpose", "batch")], 400, "invalid_file", "file"),
        ("{}".encode("utf-16"), [("purpose", "batch")], 400, "invalid_file", "file"),
        (b"{}\n" * 11, [("purpose", "batch")], 400, "too_many_lines", "file"),
        (b"x" * 5000, [("purpose", "batch")], 413, "request_too_large", None),
        (b"{}", [("purpose", "assistants")], 400, "unsupported_purpose", "purpose"),
        (b"{}", [("purpose", "fine-tune")], 400, "unsupported_purpose", "purpose"),
        (b"{}", [], 400, "missing_required_parameter", "purpose"),
        (None, [("purpose", "batch")], 400, "missing_required_parameter", "file"),
        (b"{}", [("purpose", "batch"), ("expires_after[anchor]", "now")], 400, "invalid_value", "expires_after.anchor"),
        (
            b"{}",
            [("purpose", "batch"), ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "9")],
            400,
            "invalid_value",
            "expires_after.seconds",
        ),
        (b"{}", [("purpose", "x" * 5000)], 400, "invalid_form", None),
        (b"{}", [("purpose", "batch"), *[(f"f{n}", "") for n in range(40)]], 400, "invalid_form", None),
    ],
)
async def test_an_upload_that_is_refused_names_why_and_leaves_nothing(tmp_path, content, fields, status, code, param):
    async with gateway(tmp_path, **BOUNDS) as made:
        got, said = await send(made, content, fields=fields)
        assert (got, said["error"]["code"], said["error"]["param"]) == (status, code, param), said
        assert stored(made) == [0, 0]
        assert "file.stored" not in made.types()


async def test_what_is_no_form_is_refused(acme):
    for kind, body in (
        ("application/json", b"{}"),
        ("multipart/form-data", b"--a--"),
        ("multipart/form-data; boundary=a", b"--b\r\n\r\n"),
        (
            "multipart/form-data; boundary=a",
            b'--a\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nx',
        ),
        ("multipart/form-data; boundary=a", b'--a\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--a--'),
        ("multipart/form-data; boundary=a", b""),
    ):
        answer = await acme.post(None, "/v1/files", raw=body, headers={"content-type": kind})
        assert answer.status == 400, (kind, body)
        assert answer.error["type"] == "invalid_request_error"
    answer = await acme.post(None, "/v1/files", raw=b"x", headers={"content-encoding": "gzip", "content-type": "a/b"})
    assert answer.status == 415
    status, said = await send(acme, jsonl(line(1)), headers={"x-domicile-subject": "alice"})
    assert (status, said["error"]["code"]) == (400, "invalid_subject")
    assert stored(acme) == [0, 0]


async def test_two_parts_file_are_refused(acme):
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("purpose", "batch")
    for name in ("a", "b"):
        form.add_field("file", jsonl(line(1)), filename=name)
    headers = {"authorization": f"Bearer {acme.key()}"}
    async with acme.http.post(f"{acme.base}/v1/files", data=form, headers=headers) as response:
        assert response.status == 400
    assert stored(acme) == [0, 0]


async def test_a_tenant_cannot_fill_the_disk(tmp_path):
    async with gateway(tmp_path, **BOUNDS) as made:
        assert (await send(made, b"{}\n" + b" " * 3500))[0] == 200
        status, said = await send(made, b"{}\n" + b" " * 3500)
        assert (status, said["error"]["code"]) == (413, "files_quota_exceeded")
        assert (await send(made, b"{}\n" + b" " * 3500, key="globex/main"))[0] == 200, "another tenant has its own"


GOOD = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"endpoint": ["/v1/chat/completions"]}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
        ({"other": 1}, None),
    ],
)
async def test_a_batch_that_is_refused_names_the_field(acme, change, param):
    status, said = await asked(acme, "POST", "/v1/batches", body={**GOOD, **change})
    error = json.loads(said)["error"]
    assert (status, error["param"]) == (400, param), error
    assert "; " in error["message"]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'"a"', b"null", b'{"a":' * 200])
async def test_a_body_that_is_no_object_makes_no_batch(acme, raw):
    status, said = await asked(acme, "POST", "/v1/batches", body=raw)
    assert status == 400, said


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files?limit=0"),
        ("GET", "/v1/files?limit=x"),
        ("GET", "/v1/files?limit=99999"),
        ("GET", "/v1/files?order=up"),
        ("GET", "/v1/files?purpose=vision"),
        ("GET", "/v1/batches?limit=101"),
        ("GET", "/v1/batches?limit=-1"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(acme, method, path):
    status, said = await asked(acme, method, path)
    assert (status, json.loads(said)["error"]["code"]) == (400, "invalid_value")


async def test_another_tenants_and_another_projects_ids_are_as_unknown_ones(acme):
    batch = await over(acme.sdk, await begin(acme.sdk, line(1)))
    paths = {
        file: [("GET", f"/v1/files/{file}"), ("GET", f"/v1/files/{file}/content"), ("DELETE", f"/v1/files/{file}"),
               ("GET", f"/v1/files?after={file}")]
        for file in (batch.input_file_id, batch.output_file_id)
    }  # fmt: skip
    paths[batch.id] = [
        ("GET", f"/v1/batches/{batch.id}"),
        ("POST", f"/v1/batches/{batch.id}/cancel"),
        ("GET", f"/v1/batches?after={batch.id}"),
    ]
    for id_, calls in paths.items():
        unknown = id_[:-4] + "0000"
        for method, path in calls:
            for key in ("acme/other", "globex/main"):
                theirs = await asked(acme, method, path, key)
                none = await asked(acme, method, path.replace(id_, unknown), key)
                assert theirs == none
                assert theirs[0] == 404, theirs
    assert (await acme.sdk.files.retrieve(batch.output_file_id)).id == batch.output_file_id
    status, said = await asked(
        acme, "POST", "/v1/batches", "globex/main", {**GOOD, "input_file_id": batch.input_file_id}
    )
    assert (status, json.loads(said)["error"]["code"]) == (404, "not_found")
    async with client(acme, "globex/main") as other:
        assert (await other.files.list()).data == []
        assert (await other.batches.list()).data == []


@pytest.mark.parametrize(
    "id_", ["x", "%00", "file-", "file-ZZ", "batch_%00", "..", "a" * 300, "%F0%9F%98%80", "file-1'--"]
)
async def test_what_can_be_no_id_is_unknown(acme, id_):
    for path in (f"/v1/files/{id_}", f"/v1/files/{id_}/content", f"/v1/batches/{id_}", f"/v1/files?after={id_}"):
        status, said = await asked(acme, "GET", path)
        assert status == 404, (path, said)
    status, said = await asked(acme, "POST", "/v1/batches", body={**GOOD, "input_file_id": f"file-{id_}\0"[:64]})
    assert status == 404, said


@pytest.mark.parametrize("key", ["", "nonsense", "sk-dom-1234"])
async def test_without_a_key_nothing_is_read(acme, key):
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/batches"), ("POST", "/v1/batches")):
        status, _ = await asked(acme, method, path, key, body=b"{}")
        assert status == 401


async def test_a_wrong_method_or_path_names_what_there_is(acme):
    status, said = await asked(acme, "PUT", "/v1/files")
    assert status == 405, said
    status, said = await asked(acme, "GET", "/v1/file")
    assert (status, "/v1/files" in said.decode()) == (404, True)
    status, _ = await asked(acme, "GET", "/v1/batches/x/cancel")
    assert status == 405


async def test_results_are_no_input_and_there_is_a_bound_on_batches(tmp_path):
    async with gateway(tmp_path, **BOUNDS) as made, client(made) as sdk:
        batch = await over(sdk, await begin(sdk, line(1)))
        status, said = await asked(made, "POST", "/v1/batches", body={**GOOD, "input_file_id": batch.output_file_id})
        assert (status, json.loads(said)["error"]["param"]) == (400, "input_file_id")
        made.backends["acme-1"].delay_s = 30
        file = await upload(sdk, line(1))
        statuses = [await asked(made, "POST", "/v1/batches", body={**GOOD, "input_file_id": file.id}) for _ in range(3)]
        assert [status for status, _ in statuses] == [200, 200, 429]
        assert json.loads(statuses[-1][1])["error"]["code"] == "too_many_batches"
