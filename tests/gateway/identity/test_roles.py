from itertools import product
from typing import get_args

import pytest

from gateway.identity.roles import INSTALLATION, ROLE_TABLE, Actor, Permission, check
from gateway.records.control import Role

PERMISSIONS = get_args(Permission)


def actor(tenant, *roles):
    return Actor("p1", tenant, roles, "t1")


def test_the_table_has_every_role_and_every_permission_has_a_role():
    assert set(ROLE_TABLE) == set(get_args(Role))
    assert frozenset().union(*ROLE_TABLE.values()) == set(PERMISSIONS)


@pytest.mark.parametrize(("role", "permission"), list(product(ROLE_TABLE, PERMISSIONS)))
def test_a_role_in_a_tenant_reaches_that_tenant_and_nothing_else(role, permission):
    person = actor("acme", role)
    where = None if permission in INSTALLATION else "acme"
    assert check(person, permission, where).allowed == (permission in ROLE_TABLE[role] and where is not None)
    assert not check(person, permission, "globex").allowed
    assert not check(person, permission, None).allowed


@pytest.mark.parametrize(("role", "permission"), list(product(ROLE_TABLE, PERMISSIONS)))
def test_the_staffs_roles_hold_in_every_tenant(role, permission):
    where = [None] if permission in INSTALLATION else ["acme", "globex"]
    assert {check(actor(None, role), permission, each).allowed for each in where} == {permission in ROLE_TABLE[role]}


def test_several_roles_add_up():
    person = actor("acme", "billing", "developer")
    assert check(person, "keys.manage", "acme").because == "developer may keys.manage"
    assert check(person, "tenant.read", "acme").because == "billing may tenant.read"


def test_no_role_allows_nothing():
    assert not any(check(actor(None), permission, "acme").allowed for permission in PERMISSIONS)


def test_a_refusal_names_the_roles_that_would_do_and_those_one_has():
    because = check(actor("acme", "billing"), "keys.manage", "acme").because
    assert because == "keys.manage takes one of the roles operator, tenant-admin, developer; you are billing"


def test_a_permission_is_asked_where_it_belongs():
    assert not check(actor(None, "operator"), "keys.manage", None).allowed
    assert not check(actor(None, "operator"), "tenants.manage", "acme").allowed


@pytest.mark.parametrize("role", ["auditor", "billing"])
def test_who_only_looks_changes_nothing(role):
    assert not any(p.endswith((".manage", ".activate")) for p in ROLE_TABLE[role])
