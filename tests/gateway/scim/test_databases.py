"""What an identity provider asks and changes over SCIM, on each kind of database: what is removed, and the root."""

import httpx
import pytest

from gateway.identity.grants import subject_digest
from gateway.identity.keys import KeyHasher
from gateway.records.provisioning import Mapped
from gateway.scim.app import LIST, PREFIX, build_scim
from gateway.scim.errors import ERROR
from gateway.scim.patch import PATCH
from gateway.scim.resources import GROUP, USER
from gateway.store.control.provisioning import Provisioning
from tests.gateway.conftest import PEPPER

ON_BOTH_DATABASES = True
TOKEN = "t" * 40
ISSUER = "https://id.example.eu"


def subject_of(fields):
    return None if fields.external_id is None else subject_digest(ISSUER, fields.external_id)


@pytest.fixture
def people(database):
    mapped = Mapped(subject_of, lambda groups: {None: ("operator",)} if "Platform" in groups else {})
    return Provisioning(database, mapped, cell="demo", hasher=KeyHasher(PEPPER), actor="machine:scim", check_policy=str)


@pytest.fixture
async def scim(people):
    app = build_scim(lambda: people, TOKEN.encode(), lambda request: None, PREFIX)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers
    ) as client:

        async def call(method, path, body=None):
            answer = await client.request(method, path, json=body)
            return answer.status_code, answer.json() if answer.content else None

        yield call


async def made(scim, name, **more):
    status, said = await scim("POST", "/Users", {"schemas": [USER], "userName": name, "externalId": name, **more})
    assert status == 201, said
    return said["id"]


async def in_platform(scim, *users):
    body = {"schemas": [GROUP], "displayName": "Platform", "members": [{"value": user} for user in users]}
    status, said = await scim("POST", "/Groups", body)
    assert status == 201, said
    return said


def may_enter(people, name):
    return people.admitted(subject_digest(ISSUER, name)) is not None


REMOVALS = [
    {"op": "remove", "path": "active"},
    {"op": "Remove", "path": f"{USER}:active"},
    {"op": "replace", "path": "active", "value": None},
    {"op": "add", "value": {"active": None}},
]


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: f"{each['op']} {each.get('path')}")
@pytest.mark.parametrize("before", [True, False])
async def test_whose_active_is_removed_is_out_and_a_removal_lets_nobody_in_again(scim, people, before, removal):
    user = await made(scim, "ada", active=before)
    await in_platform(scim, user)
    assert may_enter(people, "ada") == before
    status, said = await scim("PATCH", f"/Users/{user}", {"schemas": [PATCH], "Operations": [removal]})
    assert (status, said["active"]) == (200, False)
    assert (await scim("GET", f"/Users/{user}"))[1]["active"] is False
    assert not may_enter(people, "ada")
    change = {"schemas": [PATCH], "Operations": [{"op": "replace", "path": "active", "value": True}]}
    assert (await scim("PATCH", f"/Users/{user}", change))[1]["active"] is True
    assert may_enter(people, "ada")


@pytest.mark.parametrize("sent", [{}, {"active": None}], ids=["left out", "null"])
@pytest.mark.parametrize("before", [True, False])
async def test_a_put_that_says_nothing_of_active_leaves_it_as_it_is(scim, people, before, sent):
    user = await made(scim, "ada", active=before)
    await in_platform(scim, user)
    body = {"schemas": [USER], "userName": "ada", "externalId": "ada", "displayName": "Ada L.", **sent}
    status, said = await scim("PUT", f"/Users/{user}", body)
    assert (status, said["active"], said["displayName"]) == (200, before, "Ada L.")
    assert may_enter(people, "ada") == before


async def test_who_is_created_without_a_word_of_active_is_active(scim, people):
    await in_platform(scim, await made(scim, "ada"), await made(scim, "bob", active=None))
    assert may_enter(people, "ada") and may_enter(people, "bob")


async def test_a_change_of_something_else_leaves_active_as_it_is(scim):
    user = await made(scim, "ada", active=False)
    change = {"schemas": [PATCH], "Operations": [{"op": "replace", "path": "displayName", "value": "Ada"}]}
    assert (await scim("PATCH", f"/Users/{user}", change))[1]["active"] is False


async def test_a_member_has_its_name_and_type_whatever_was_sent(scim):
    ada = await made(scim, "ada")
    said = await in_platform(scim, ada)
    member = {"value": ada, "display": "ada", "type": "User", "$ref": f"{PREFIX}/Users/{ada}"}
    assert said["members"] == [member]
    lie = {"op": "replace", "path": "members", "value": [{"value": ada, "display": "root", "type": "Group"}]}
    status, said = await scim("PATCH", f"/Groups/{said['id']}", {"schemas": [PATCH], "Operations": [lie]})
    assert (status, said["members"]) == (200, [member])


ROOT = [("GET", "/"), ("POST", "/.search")]


async def ask(scim, method, path, **query):
    if method == "POST":
        return await scim(method, path, query)
    return await scim(method, f"{path}?{httpx.QueryParams(query)}")


@pytest.mark.parametrize("method, path", ROOT)
async def test_the_root_is_searched_for_users_and_groups_at_once(scim, method, path):
    ada, bob = await made(scim, "ada", displayName="Platform"), await made(scim, "bob")
    group = (await in_platform(scim, ada))["id"]
    for filter_, found in [
        ('displayName eq "Platform"', [ada, group]),
        (f'{USER}:displayName eq "Platform"', [ada]),
        (f'{GROUP}:displayName eq "Platform"', [group]),
        ('userName eq "BOB"', [bob]),
        (f'id eq "{group}"', [group]),
        ('externalId eq "ada"', [ada]),
        ('meta.resourceType eq "User"', [ada, bob]),
        ('meta.resourceType eq "Group"', [group]),
        ('meta.resourceType eq "Device"', []),
        ('meta.resourceType sw "U"', [ada, bob]),
        ('userName sw "A"', [ada]),
        ('displayName sw "plat"', [ada, group]),
        ('externalId sw "AD"', []),
        ('userName eq "nobody"', []),
    ]:
        status, said = await ask(scim, method, path, filter=filter_)
        assert (status, said["schemas"]) == (200, [LIST]), said
        assert [each["id"] for each in said["Resources"]] == found, filter_
        assert said["totalResults"] == said["itemsPerPage"] == len(found)
    _, said = await ask(scim, method, path)
    assert [each["id"] for each in said["Resources"]] == [ada, bob, group]
    assert [each["meta"]["resourceType"] for each in said["Resources"]] == ["User", "User", "Group"]


@pytest.mark.parametrize("method, path", ROOT)
async def test_pages_of_the_root_go_from_the_users_on_to_the_groups(scim, method, path):
    users = [await made(scim, name) for name in ("ada", "bob")]
    every = [*users, (await in_platform(scim))["id"]]
    for start, count in [(1, 2), (1, 3), (2, 2), (3, 1), (3, 5), (4, 1), (1, 0), (0, 1), (-1, -1)]:
        _, said = await ask(scim, method, path, startIndex=start, count=count)
        first = max(start, 1) - 1
        found = every[first : first + max(count, 0)]
        assert ([each["id"] for each in said["Resources"]], said["totalResults"]) == (found, 3), (start, count)
    _, said = await ask(scim, method, path, attributes="displayName")
    assert [set(each) for each in said["Resources"]] == [{"schemas", "id"}] * 2 + [{"schemas", "id", "displayName"}]


@pytest.mark.parametrize("method, path", ROOT)
@pytest.mark.parametrize("filter_", ['password eq "x"', 'userName co "a"', "userName eq", 'a eq "b" or c eq "d"'])
async def test_what_no_resource_is_searched_by_is_refused_at_the_root(scim, method, path, filter_):
    await made(scim, "ada")
    status, said = await ask(scim, method, path, filter=filter_)
    assert (status, said["schemas"], said["scimType"]) == (400, [ERROR], "invalidFilter")


def operations(*each):
    return {"schemas": [PATCH], "Operations": list(each)}


EXTENSION = "urn:ietf:params:scim:schemas:extension:acme:2.0:User"


async def test_attributes_of_extensions_are_not_those_of_the_same_name_that_are_kept(scim, people):
    ada = await made(scim, "ada", displayName="Ada")
    for change in (
        {"op": "replace", "path": f"{EXTENSION}:active", "value": False},
        {"op": "remove", "path": f"{EXTENSION}:active"},
        {"op": "add", "value": {f"{EXTENSION}:displayName": "x", f"{EXTENSION}:active": "False"}},
        {"op": "replace", "value": {EXTENSION: {"active": False, "displayName": "x"}}},
    ):
        status, said = await scim("PATCH", f"/Users/{ada}", operations(change))
        assert (status, said["active"], said["displayName"]) == (200, True, "Ada"), change
    assert may_enter(people, "ada")


async def test_what_okta_sends_in_the_life_of_a_person(scim, people):
    """The bodies of Okta's guide for SCIM 2.0, in their order."""
    _, said = await scim("GET", '/Users?filter=userName%20eq%20"ada"&startIndex=1&count=100')
    assert (said["totalResults"], said["Resources"]) == (0, [])
    body = {
        "schemas": [USER],
        "userName": "ada",
        "name": {"givenName": "Ada", "familyName": "L"},
        "emails": [{"primary": True, "value": "ada@example.eu", "type": "work"}],
        "displayName": "Ada L",
        "locale": "en-US",
        "externalId": "ada",
        "groups": [],
        "password": "1mz050nq",
        "active": True,
    }
    status, said = await scim("POST", "/Users", body)
    assert status == 201 and "password" not in said
    ada = said["id"]
    status, said = await scim("PUT", f"/Users/{ada}", {**body, "id": ada, "meta": {"resourceType": "User"}})
    assert (status, said["id"]) == (200, ada)
    group = (await in_platform(scim))["id"]
    change = operations(
        {"op": "remove", "path": 'members[value eq "nobody"]'},
        {"op": "add", "path": "members", "value": [{"value": ada, "display": "ada"}]},
    )
    status, said = await scim("PATCH", f"/Groups/{group}", change)
    assert (status, [each["value"] for each in said["members"]]) == (200, [ada])
    change = operations({"op": "replace", "value": {"id": group, "displayName": "Platform"}})
    status, said = await scim("PATCH", f"/Groups/{group}", change)
    assert (status, [each["value"] for each in said["members"]]) == (200, [ada])
    assert may_enter(people, "ada")
    change = operations({"op": "replace", "path": "members", "value": []})
    assert (await scim("PATCH", f"/Groups/{group}", change))[1]["members"] == []
    status, said = await scim("PATCH", f"/Users/{ada}", operations({"op": "replace", "value": {"active": False}}))
    assert (status, said["active"]) == (200, False) and not may_enter(people, "ada")


async def test_what_entra_sends_in_the_life_of_a_person(scim, people):
    """The bodies of Microsoft's guide, with texts for truth values and capital operations."""
    body = {
        "schemas": [USER, "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
        "externalId": "ada",
        "userName": "ada",
        "active": "True",
        "displayName": "Ada",
        "emails": [{"primary": True, "type": "work", "value": "ada@example.eu"}],
        "meta": {"resourceType": "User"},
        "name": {"formatted": "Ada L", "familyName": "L", "givenName": "Ada"},
        "roles": [],
    }
    status, said = await scim("POST", "/Users", body)
    assert (status, said["active"]) == (201, True)
    ada = said["id"]
    change = operations(
        {"op": "Replace", "path": 'emails[type eq "work"].value', "value": "other@example.eu"},
        {"op": "Add", "path": 'addresses[type eq "work" and primary eq true].country', "value": "DE"},
        {"op": "Replace", "path": "name.familyName", "value": "Lovelace"},
        {"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:manager", "value": "x"},
        {
            "op": "Replace",
            "value": {"displayName": "Ada Lovelace", "name.givenName": "A", 'roles[primary eq "True"].value': "r"},
        },
    )
    status, said = await scim("PATCH", f"/Users/{ada}", change)
    assert (status, said["displayName"], said["active"]) == (200, "Ada Lovelace", True)
    group = (await in_platform(scim))["id"]
    for value in ([{"value": ada}], {"value": ada}, [{"$ref": None, "value": ada}]):
        change = operations({"op": "Add", "path": "members", "value": value})
        status, said = await scim("PATCH", f"/Groups/{group}", change)
        assert (status, [each["value"] for each in said["members"]]) == (200, [ada])
    _, said = await scim("GET", '/Groups?excludedAttributes=members&filter=displayName%20eq%20"Platform"')
    assert [(each["id"], "members" in each) for each in said["Resources"]] == [(group, False)]
    change = operations({"op": "Remove", "path": "members", "value": [{"$ref": None, "value": ada}]})
    assert (await scim("PATCH", f"/Groups/{group}", change))[1]["members"] == []
    for said_false in ("False", "false", False):
        change = operations({"op": "Replace", "path": "active", "value": said_false})
        status, said = await scim("PATCH", f"/Users/{ada}", change)
        assert (status, said["active"]) == (200, False) and not may_enter(people, "ada")
        await scim("PATCH", f"/Users/{ada}", operations({"op": "Add", "path": "active", "value": "True"}))
    assert may_enter(people, "ada")
    assert (await scim("DELETE", f"/Users/{ada}"))[0] == 204 and not may_enter(people, "ada")
