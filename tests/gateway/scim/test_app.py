"""What an identity provider does over SCIM, against a gateway: people come, change groups, go and lose sessions."""

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from audit.files.secret_file import write_secret
from gateway.identity.grants import subject_digest
from gateway.scim.app import LIST, PREFIX
from gateway.scim.errors import ERROR
from gateway.scim.patch import PATCH
from gateway.scim.resources import GROUP, USER
from tests.fakes.device_provider import CLIENT, DeviceProvider
from tests.fakes.lab import lab

TOKEN = "scim-" + "t" * 40
ROLES = [
    {"group": "Acme DPO", "role": "dpo", "tenant": "acme"},
    {"group": "Acme Admins", "role": "tenant-admin", "tenant": "acme"},
    {"group": "Platform", "role": "operator", "staff": True},
]


class Scim:
    def __init__(self, made, provider):
        self.made, self.provider = made, provider

    async def __call__(self, method, path, body=None, token=TOKEN, **headers):
        """(status, body, headers)"""
        sent = {"content-type": "application/scim+json", **headers}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        url = f"{self.made.base}{PREFIX}{path}"
        async with self.made.http.request(method, url, json=body, headers=sent) as answer:
            said = await answer.json(content_type=None) if await answer.read() else None
            if said is not None:
                assert answer.content_type == "application/scim+json"
            return answer.status, said, answer.headers

    async def user(self, name="ada", **more):
        body = {"schemas": [USER], "userName": f"{name}@example.eu", "externalId": name, "displayName": name, **more}
        status, said, _ = await self("POST", "/Users", body)
        assert status == 201, said
        return said["id"]

    async def group(self, name="Acme DPO", *members):
        body = {"schemas": [GROUP], "displayName": name, "members": [{"value": each} for each in members]}
        status, said, _ = await self("POST", "/Groups", body)
        assert status == 201, said
        return said["id"]

    async def patch(self, path, *operations, **headers):
        body = {"schemas": [PATCH], "Operations": list(operations)}
        return await self("PATCH", path, body, **headers)

    async def login(self, name="ada"):
        """The status of a login by an ID token, and the session."""
        body = {"id_token": self.provider.id_token(sub=name, groups=["Platform"])}
        async with self.made.http.post(f"{self.made.base}/admin/v1/device-login", json=body) as answer:
            return answer.status, (await answer.json()).get("token")

    async def me(self, session):
        headers = {"authorization": f"Bearer {session}"}
        async with self.made.http.get(f"{self.made.base}/admin/v1/me", headers=headers) as answer:
            return answer.status, (await answer.json()).get("roles")


@asynccontextmanager
async def running(tmp_path, **scim):
    file = tmp_path / "scim-token"
    write_secret(file, TOKEN.encode() + b"\n")
    async with DeviceProvider().running() as provider:
        oidc = {"issuer": provider.url, "device_client_id": CLIENT, "roles": ROLES}
        async with lab(tmp_path, backends={}, oidc=oidc, scim={"token_file": str(file), **scim}) as made:
            yield Scim(made, provider)


async def test_a_person_comes_logs_in_changes_groups_and_goes(tmp_path):
    async with running(tmp_path) as scim:
        assert (await scim.login())[0] == 403, "whatever the token's groups say"
        user = await scim.user()
        assert (await scim.login())[0] == 403, "no group, no role"
        dpos = await scim.group("Acme DPO", user)
        status, session = await scim.login()
        assert status == 201 and await scim.me(session) == (200, ["dpo"])
        admins = await scim.group("Acme Admins")
        await scim.patch(f"/Groups/{admins}", {"op": "add", "path": "members", "value": [{"value": user}]})
        assert await scim.me(session) == (200, ["tenant-admin", "dpo"]), "in force at once"
        await scim.patch(f"/Groups/{dpos}", {"op": "remove", "path": f'members[value eq "{user}"]'})
        assert await scim.me(session) == (200, ["tenant-admin"])
        await scim.patch(f"/Users/{user}", {"op": "Replace", "path": "active", "value": "False"})
        assert (await scim.me(session))[0] == 401, "the session ends at once"
        assert (await scim.login())[0] == 403
        await scim.patch(f"/Users/{user}", {"op": "replace", "value": {"active": True}})
        assert (await scim.me(session))[0] == 401, "it does not come back"
        status, session = await scim.login()
        assert status == 201 and await scim.me(session) == (200, ["tenant-admin"])
        assert (await scim("DELETE", f"/Users/{user}"))[0] == 204
        assert (await scim.me(session))[0] == 401 and (await scim.login())[0] == 403
        kinds = [(event["type"], event["actor"]) for event in scim.made.events() if event["type"].startswith("admin.")]
        assert ("admin.session.closed", "machine:scim") in kinds
        assert ("admin.person.changed", "machine:scim") in kinds
        # a word of its own: a hash may hold these letters
        assert not re.search(r"\bada\b", str(scim.made.events()), re.IGNORECASE), "the record has no name"


@pytest.mark.parametrize("how", ["delete the group", "rename it", "replace its members", "another externalId"])
async def test_whoever_is_in_no_group_any_more_has_no_role(tmp_path, how):
    async with running(tmp_path) as scim:
        user = await scim.user()
        group = await scim.group("Acme DPO", user)
        _, session = await scim.login()
        match how:
            case "delete the group":
                assert (await scim("DELETE", f"/Groups/{group}"))[0] == 204
            case "rename it":
                await scim.patch(f"/Groups/{group}", {"op": "replace", "path": "displayName", "value": "Guests"})
            case "replace its members":
                await scim("PUT", f"/Groups/{group}", {"schemas": [GROUP], "displayName": "Acme DPO"})
            case _:
                await scim.patch(f"/Users/{user}", {"op": "replace", "path": "externalId", "value": "grace"})
                assert (await scim.me(session))[0] == 401, "somebody else now: the session ends"
                return
        assert (await scim.me(session))[1] in (None, [])
        assert (await scim.login())[0] == 403


async def test_names_are_unique_without_case_and_found_by_filters(tmp_path):
    async with running(tmp_path) as scim:
        ada, bob = await scim.user("ada"), await scim.user("bob")
        await scim.patch(f"/Users/{bob}", {"op": "replace", "path": "displayName", "value": "Die Größte"})
        for body in (
            {"userName": "ADA@example.eu", "externalId": "x"},
            {"userName": "other@example.eu", "externalId": "ada"},
        ):
            status, said, _ = await scim("POST", "/Users", {"schemas": [USER], **body})
            assert (status, said["schemas"], said["scimType"]) == (409, [ERROR], "uniqueness")
        status, said, _ = await scim.patch(
            f"/Users/{bob}", {"op": "replace", "path": "userName", "value": "Ada@example.eu"}
        )
        assert (status, said["scimType"]) == (409, "uniqueness")
        for filter_, found in [
            ('userName eq "Ada@EXAMPLE.eu"', [ada]),
            ('externalId eq "bob"', [bob]),
            (f'id eq "{ada}"', [ada]),
            ('USERNAME EQ "bob@example.eu"', [bob]),
            (f'{USER}:userName eq "bob@example.eu"', [bob]),
            ('userName eq "nobody"', []),
            ('externalId eq "BOB"', []),
            (f'id eq "{ada.upper()}X"', []),
            ('displayName eq "DIE GRÖSSTE"', [bob]),
            ('displayName eq "die größte"', [bob]),
            ('displayName eq "die grösst"', []),
            ('displayName sw "die GRÖSS"', [bob]),
            ('userName sw "ADA@"', [ada]),
            ('userName SW "b"', [bob]),
            ('userName sw "%"', []),
            ('userName sw "da"', []),
            ('externalId sw "bo"', [bob]),
            ('externalId sw "BO"', []),
            (f'id sw "{ada[:20]}"', [ada]),
        ]:
            status, said, _ = await scim("GET", f"/Users?filter={filter_}")
            assert status == 200 and said["schemas"] == [LIST]
            assert [each["id"] for each in said["Resources"]] == found, filter_
        status, said, _ = await scim("GET", "/Users?startIndex=2&count=1")
        assert (said["totalResults"], said["itemsPerPage"], [each["id"] for each in said["Resources"]]) == (2, 1, [bob])
        _, said, _ = await scim("GET", f"/Users/{ada}?attributes=userName,{USER}:active")
        assert said.keys() == {"schemas", "id", "userName", "active"}
        for said in (
            (await scim("GET", "/Users?excludedAttributes=userName,meta.version&startIndex=2"))[1],
            (await scim("POST", "/Users/.search", {"excludedAttributes": ["userName", "meta"], "startIndex": 2}))[1],
        ):
            assert [each.keys() for each in said["Resources"]] == [
                {"schemas", "id", "displayName", "active", "externalId"}
            ]
        status, said, _ = await scim("GET", "/Users?count=0")
        assert (said["totalResults"], said["Resources"]) == (2, [])
        for filter_ in (
            "userName sw",
            'userName ne "a"',
            'userName co "a"',
            'password eq "x"',
            'a eq "b" or c eq "d"',
            '"x" eq "y"',
        ):
            status, said, _ = await scim("GET", f"/Users?filter={filter_}")
            assert (status, said["scimType"]) == (400, "invalidFilter"), filter_


async def test_two_changes_at_once_do_not_overwrite_each_other(tmp_path):
    async with running(tmp_path) as scim:
        user = await scim.user()
        _, said, headers = await scim("GET", f"/Users/{user}")
        assert headers["etag"] == said["meta"]["version"] == 'W/"1"'
        assert (await scim("GET", f"/Users/{user}", **{"if-none-match": 'W/"1"'}))[0] == 304
        change = {"op": "replace", "path": "displayName", "value": "Ada L."}
        assert (await scim.patch(f"/Users/{user}", change, **{"if-match": 'W/"1"'}))[0] == 200
        assert (await scim.patch(f"/Users/{user}", change, **{"if-match": 'W/"1"'}))[0] == 412
        assert (await scim("DELETE", f"/Users/{user}", **{"if-match": "x"}))[0] == 412
        group = await scim.group("Acme DPO")
        others = [await scim.user(f"u{number}") for number in range(4)]

        async def join(each):  # names no version, so it is told of none
            operation = {"op": "add", "path": "members", "value": [{"value": each}]}
            return (await scim.patch(f"/Groups/{group}", operation))[0]

        assert await asyncio.gather(*map(join, others)) == [200] * 4
        _, said, _ = await scim("GET", f"/Groups/{group}")
        assert {each["value"] for each in said["members"]} == set(others)


async def test_nobody_without_the_token_gets_a_word(tmp_path):
    async with running(tmp_path) as scim:
        user = await scim.user()
        for token in (None, "", "x", TOKEN + "x", TOKEN[:-1]):
            for method, path in [
                ("GET", "/Users"), ("GET", f"/Users/{user}"), ("POST", "/Users"), ("DELETE", f"/Users/{user}"),
                ("GET", "/ServiceProviderConfig"), ("GET", "/Schemas"),
            ]:  # fmt: skip
                status, said, headers = await scim(method, path, {} if method == "POST" else None, token=token)
                assert (status, said["status"], headers["www-authenticate"]) == (401, "401", "Bearer")
        operator = scim.made.control.create_person(None, "Op", ["operator"])
        at = scim.made.control._now() + timedelta(days=1)
        _, key = scim.made.control.create_token(None, operator.id, expires_at=at)
        assert (await scim("GET", "/Users", token=key.token))[0] == 401, "nor an operator's token"
        assert (await scim.me(TOKEN))[0] == 401, "and this one opens nothing else"


A = {"schemas": [USER], "userName": "a"}
NO_USERS = [
    [], "x", {}, {"schemas": [USER]}, {"schemas": [GROUP], "userName": "a"}, {"userName": "a"}, {**A, "userName": 7},
    {**A, "userName": "a\n"}, {**A, "userName": " "}, {**A, "active": "perhaps"}, {**A, "userName": "a" * 257},
    {**A, "username": "b"}, {**A, "externalId": "x" * 257}, {**A, "displayName": "\x1b[2J"},
]  # fmt: skip
NO_OPERATIONS = [
    {}, {"op": "move"}, {"op": "replace"}, {"op": "remove"}, {"op": "replace", "value": "x"},
    {"op": "add", "path": "members[", "value": []}, {"op": "add", "path": 7, "value": []},
    {"op": "replace", "path": 'members[value eq "x"]', "value": []},
    {"op": "remove", "path": 'members[type eq "x"]'}, {"op": "add", "path": "members", "value": ["x"]},
    {"op": "add", "path": "members", "value": [{"value": "nobody"}]}, {"op": "remove", "path": "displayName"},
    {"op": "replace", "path": "displayName", "value": {"a": 1}},
]  # fmt: skip


async def test_what_makes_no_sense_is_refused_in_words_and_changes_nothing(tmp_path):
    async with running(tmp_path) as scim:
        for body in NO_USERS:
            status, said, _ = await scim("POST", "/Users", body)
            assert (status, said["schemas"]) == (400, [ERROR]) and "; " in said["detail"], body
        assert (await scim("GET", "/Users"))[1]["totalResults"] == 0
        path = f"/Groups/{await scim.group('Kept')}"
        before = (await scim("GET", path))[1]
        for operation in NO_OPERATIONS:
            status, said, _ = await scim.patch(path, operation)
            assert status == 400 and said["scimType"], (operation, said)
        assert (await scim("GET", path))[1] == before


async def test_what_is_not_there_is_not_found_and_what_is_not_kept_is_ignored(tmp_path):
    async with running(tmp_path) as scim:
        for method, path, body in [
            ("GET", "/Users/nobody", None),
            ("DELETE", "/Groups/none", None),
            ("PUT", "/Users/nobody", A),
            ("GET", "/Me", None),
            ("GET", "/Schemas/x", None),
        ]:
            status, said, _ = await scim(method, path, body)
            assert (status, said["status"]) == (404, "404"), path
        status, _, headers = await scim("PUT", "/Users")
        assert (status, headers["allow"]) == (405, "GET, HEAD, POST")
        user = await scim.user("zoe", title="Dr.", emails=[{"value": "zoe@example.eu"}], password="secret")
        assert (await scim.patch(f"/Users/{user}", {"op": "add", "path": "name.familyName", "value": "Z"}))[0] == 200
        _, said, _ = await scim("GET", f"/Users/{user}")
        assert said.keys() == {"schemas", "id", "userName", "displayName", "active", "externalId", "meta"}


async def test_the_name_may_be_who_it_is_at_the_provider(tmp_path):
    async with running(tmp_path, subject="userName") as scim:
        user = await scim.user("ada", userName="ada", externalId="0-1")
        await scim.group("Platform", user)
        status, session = await scim.login("ada")
        assert status == 201 and await scim.me(session) == (200, ["operator"])


def test_a_subject_is_a_digest_of_issuer_and_name():
    assert subject_digest("https://a", "x") != subject_digest("https://b", "x")


async def test_a_token_that_could_be_guessed_keeps_the_gateway_from_starting(tmp_path):
    file = tmp_path / "scim-token"
    write_secret(file, b"short")
    with pytest.raises(Exception, match="less than 32 characters; write a random token"):
        async with lab(
            tmp_path,
            backends={},
            oidc={"issuer": "https://id.example.eu", "audience": "api"},
            scim={"token_file": str(file)},
        ):
            pass
