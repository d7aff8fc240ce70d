import pytest

from gateway.configuration.settings import GroupRole
from gateway.identity.grants import display_name_of, grants_of, groups_of, subject_digest

MAPPING = (
    GroupRole(group="platform", role="operator", staff=True),
    GroupRole(group="watch", role="auditor", staff=True),
    GroupRole(group="acme-dpo", role="dpo", tenant="acme"),
    GroupRole(group="acme-dev", role="developer", tenant="acme"),
    GroupRole(group="globex-dev", role="developer", tenant="globex"),
)


@pytest.mark.parametrize(
    ("claims", "claim", "groups"),
    [
        ({"groups": ["a", "b"]}, "groups", {"a", "b"}),
        ({"groups": "a b"}, "groups", {"a b"}),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"https://example.eu/groups": ["a"]}, "https://example.eu/groups", {"a"}),
        ({"a.b": ["exact"], "a": {"b": ["path"]}}, "a.b", {"exact"}),
        ({}, "groups", set()),
        ({"groups": None}, "groups", set()),
        ({"groups": {"operator": True}}, "groups", set()),
        ({"groups": ["a", 1, None, ["b"]]}, "groups", {"a"}),
        ({"realm_access": ["roles"]}, "realm_access.roles", set()),
    ],
)
def test_groups_are_read_where_the_provider_puts_them(claims, claim, groups):
    assert groups_of(claims, claim) == groups


def test_roles_follow_groups_by_tenant():
    assert grants_of(frozenset({"acme-dev", "acme-dpo", "globex-dev"}), MAPPING) == {
        "acme": ("developer", "dpo"),
        "globex": ("developer",),
    }
    assert grants_of(frozenset({"platform", "watch"}), MAPPING) == {None: ("operator", "auditor")}
    assert grants_of(frozenset({"operator", "Platform", "platform ", "аcme-dpo"}), MAPPING) == {}


def test_the_same_subject_of_another_issuer_is_somebody_else():
    digests = {subject_digest(*who) for who in (("a", "b"), ("b", "b"), ("a", "a"), ("a\0", "b"), ("a", "\0b"))}
    assert len(digests) >= 4
    assert subject_digest("https://x", "7") == subject_digest("https://x", "7")


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"name": "Ada Lovelace"}, "Ada Lovelace"),
        ({"name": "x\r\ny", "preferred_username": "ada"}, "ada"),
        ({"name": "x" * 201, "nickname": "A"}, "A"),
        ({"name": " ", "preferred_username": 7}, "somebody of the identity provider"),
        ({"name": "\u202egnp.exe"}, "somebody of the identity provider"),
    ],
)
def test_a_name_is_one_printable_line(claims, name):
    assert display_name_of(claims) == name
