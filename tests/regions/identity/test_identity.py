import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.errors import IdentityError
from regions.identity.identity import NAME, BackendIdentity, GatewayIdentity, parse_identity

BACKEND = "spiffe://domicile.demo/tenant/acme/region/eu-fr-par/backend/acme-1"
GATEWAY = "spiffe://domicile.demo/tenant/acme/gateway"
names = st.from_regex(NAME, fullmatch=True)


def test_a_backend_is_named_by_tenant_region_and_id():
    assert BackendIdentity("demo", "acme", "eu-fr-par", "acme-1").uri == BACKEND


def test_the_gateway_has_one_identity_a_tenant():
    assert GatewayIdentity("demo", "acme").uri == GATEWAY
    assert GatewayIdentity("demo", "globex").uri != GATEWAY


@given(names, names, names, names)
def test_what_is_written_is_read_back(cell, tenant, region, backend):
    for identity in (BackendIdentity(cell, tenant, region, backend), GatewayIdentity(cell, tenant)):
        assert parse_identity(identity.uri) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "",
        BACKEND + "/",
        BACKEND + "\n",
        " " + BACKEND,
        BACKEND + "?x",
        BACKEND + "#x",
        BACKEND.replace("spiffe", "SPIFFE"),
        BACKEND.replace("spiffe", "https"),
        BACKEND.replace("acme/", "Acme/"),
        BACKEND.replace("acme/", "аcme/"),  # Cyrillic а
        BACKEND.replace("acme/", "acm%65/"),
        BACKEND.replace("acme/", "../"),
        BACKEND.replace("acme/", "acme//"),
        BACKEND.replace("domicile.demo", "domicile.demo:443"),
        BACKEND.replace("domicile.demo", "me@domicile.demo"),
        BACKEND.replace("domicile.demo", "domicile.demo.evil"),
        BACKEND.replace("domicile.demo", "domicile"),
        BACKEND.replace("domicile.demo", "domicilexdemo"),
        BACKEND.replace("/region/eu-fr-par", ""),
        GATEWAY + "/backend/acme-1",
        "spiffe://domicile.demo/gateway",
    ],
)
def test_any_other_spelling_is_no_identity(uri):
    with pytest.raises(IdentityError):
        parse_identity(uri)


@pytest.mark.parametrize("name", ["", "a", "A1", "1a", "-a", "a_b", "a/b", "a" * 32, "a\n", "é1", "a.b"])
def test_a_name_outside_the_grammar_makes_no_identity(name):
    with pytest.raises(IdentityError):
        BackendIdentity("demo", name, "eu-fr-par", "acme-1")
    with pytest.raises(IdentityError):
        BackendIdentity("demo", "acme", "eu-fr-par", name)
    with pytest.raises(IdentityError):
        GatewayIdentity(name, "acme")
