"""Tokens that are not to be believed, each by the one thing that is wrong with it."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.jwt import (
    ALGORITHMS,
    MAX_LIFE_S,
    MAX_SIZE,
    JwtRefused,
    check_claims,
    check_login,
    looks_like_jwt,
    public_keys,
    read_header,
    verified_claims,
)
from gateway.identity.keys import KeyRefused, generate_key
from tests.fakes.issuer import ISSUER, NOW, Issuer, key

ISSUED = Issuer()


def judged(token, *, by=None, now=NOW, skew_s=60, audience="domicile-api"):
    header = read_header(token)
    claims = verified_claims(token, header, public(by or key()))
    check_claims(claims, issuer=ISSUER, audience=audience, now=now, skew_s=skew_s)
    return claims


def public(signer):
    (read,) = public_keys({"keys": [signer.as_dict(private=False)]})
    return read


def refusal(token, **more):
    with pytest.raises(JwtRefused) as refused:
        judged(token, **more)
    assert not token or token[:40] not in str(refused.value)
    return refused.value.reason


def segment(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def unsigned(header, claims=None, signature="AA"):
    return f"{segment(header)}.{segment(claims or ISSUED.claims())}.{signature}"


@pytest.mark.parametrize(("alg", "kind"), [("RS256", "RSA"), ("PS256", "RSA"), ("ES256", "EC"), ("Ed25519", "OKP")])
def test_a_token_signed_by_a_known_key_is_believed(alg, kind):
    signer = key("k", kind)
    claims = judged(Issuer(signer).token(alg=alg), by=signer)
    assert (claims["sub"], claims["groups"]) == ("robot", ["platform"])


def test_its_refusal_is_a_refusal_of_the_caller():
    assert issubclass(JwtRefused, KeyRefused)


# --- the signature ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", "HS256", "HS384", "HS512", "RS1", "EdDSA", None, 5]
)
def test_only_pinned_algorithms_are_read_at_all(alg):
    assert refusal(unsigned({"alg": alg, "kid": "k1"})) == "jwt_algorithm"


def test_no_algorithm_that_works_with_a_shared_secret_is_pinned():
    assert not {alg for alg in ALGORITHMS if alg.startswith("HS") or alg.lower() == "none"}


def test_a_mac_made_with_the_public_key_is_no_signature():
    import hmac
    from hashlib import sha256

    from joserfc.jwk import RSAKey

    pem = RSAKey.import_key(key().as_dict(private=False)).as_pem(private=False)
    signed = f"{segment({'alg': 'HS256', 'kid': 'k1'})}.{segment(ISSUED.claims(groups=['root']))}"
    mac = segment(hmac.new(pem, signed.encode(), sha256).digest())
    assert refusal(f"{signed}.{mac}") == "jwt_algorithm"


@pytest.mark.parametrize(("alg", "kind"), [("ES256", "RSA"), ("RS256", "EC"), ("Ed25519", "RSA")])
def test_an_algorithm_of_another_kind_of_key_is_refused(alg, kind):
    assert refusal(unsigned({"alg": alg, "kid": "k"}), by=key("k", kind)) == "jwt_algorithm"


def test_a_key_that_states_its_algorithm_signs_with_no_other():
    signer = key("stated", "RSA", alg="PS256")
    assert judged(Issuer(signer).token(alg="PS256"), by=signer)
    assert refusal(unsigned({"alg": "RS256", "kid": "stated"}), by=signer) == "jwt_algorithm"


@pytest.mark.parametrize("signature", ["", "AA", "A" * 342, "!!"])
def test_a_signature_that_was_stripped_or_made_up_is_refused(signature):
    token = ISSUED.token().rsplit(".", 1)[0]
    assert refusal(f"{token}.{signature}") in {"jwt_shape", "jwt_signature"}


def test_a_payload_that_was_exchanged_under_its_signature_is_refused():
    header, _, signature = ISSUED.token().split(".")
    assert refusal(f"{header}.{segment(ISSUED.claims(groups=['root']))}.{signature}") == "jwt_signature"


def test_a_stranger_who_names_a_known_key_is_refused():
    assert refusal(ISSUED.token(key("k1", "RSA", use="sig"))) == "jwt_signature"


@pytest.mark.parametrize(
    "more",
    [
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["MIIB"]},
        {"jwk": {"kty": "oct", "k": "AA"}},
        {"crit": ["exp"], "exp": 1},
        {"crit": ["b64"], "b64": False},
        {"zip": "DEF"},
        {"typ": "logout+jwt"},
        {"typ": ["JWT"]},
        {"kid": ["k1"]},
        {"kid": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_header_that_brings_its_own_keys_or_rules_is_refused(more):
    assert refusal(unsigned({"alg": "RS256", "kid": "k1"} | more)) == "jwt_header"


# --- shape -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        "", ".", "..", "a.b", "a.b.c.d", "a.b.c d", "a.b.c\r\nx: y", "é.é.é", "a=.b=.c=", "{}.{}.{}", "\0.\0.\0",
        "' OR 1=1 --.a.b", f"{segment([1])}.{segment({})}.AA", f"{segment(b'nope')}.e30.AA", "e30.e30.AA",
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused_without_more_ado(token):
    assert refusal(token) in {"jwt_shape", "jwt_algorithm"}


def test_a_huge_token_is_refused_before_it_is_read():
    assert refusal("A" * (MAX_SIZE + 1)) == "jwt_size"
    assert refusal(ISSUED.token(padding="x" * MAX_SIZE)) == "jwt_size"


@pytest.mark.parametrize("nested", ["[" * 2400 + "]" * 2400, '{"a":' * 900 + "1" + "}" * 900])
def test_a_deep_token_is_refused_in_a_sentence(nested):
    assert refusal(ISSUED.token(payload=nested)) in {"jwt_shape", "jwt_issuer"}


def test_a_claim_said_twice_is_believed_neither_way():
    claims = json.dumps(ISSUED.claims())
    for twice in ('"groups": ["root"], ', '"aud": "another", ', '"ext": {"a": 1, "a": 2}, '):
        assert refusal(ISSUED.token(payload="{" + twice + claims[1:])) == "jwt_shape"


def test_a_header_member_said_twice_is_refused():
    token = ISSUED.token()
    doubled = segment(b'{"alg":"RS256","alg":"none","kid":"k1"}')
    assert refusal(f"{doubled}.{token.split('.', 1)[1]}") == "jwt_shape"


@pytest.mark.parametrize("payload", ["[]", '"x"', "null", "1", "", '{"exp": NaN}', '{"exp": Infinity}', "\ufeff{}"])
def test_a_payload_that_is_no_object_is_refused(payload):
    token = ISSUED.token(payload=payload or " ")
    assert refusal(token) == "jwt_shape"


def test_our_own_keys_do_not_look_like_tokens_of_the_provider():
    assert not looks_like_jwt(generate_key(kind="admin").token)
    assert looks_like_jwt(ISSUED.token())


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_nothing_that_is_sent_makes_it_fail_otherwise(header, payload, signature):
    for token in (f"{header}.{payload}.{signature}", f"{segment(header.encode())}.{segment(payload.encode())}.AA"):
        with pytest.raises(JwtRefused):
            judged(token)


# --- claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://id.example.eu/realms/other"}, "jwt_issuer"),
        ({"iss": ISSUER + "/"}, "jwt_issuer"),
        ({"iss": [ISSUER]}, "jwt_issuer"),
        ({"iss": None}, "jwt_issuer"),
        ({"aud": "another"}, "jwt_audience"),
        ({"aud": ["another", "third"]}, "jwt_audience"),
        ({"aud": []}, "jwt_audience"),
        ({"aud": {"domicile-api": 1}}, "jwt_audience"),
        ({"aud": ["domicile-api", 1]}, "jwt_audience"),
        ({"aud": "domicile"}, "jwt_audience"),
        ({"aud": None}, "jwt_audience"),
        ({"exp": NOW - 60}, "jwt_expired"),
        ({"exp": None}, "jwt_times"),
        ({"exp": "2099"}, "jwt_times"),
        ({"exp": True}, "jwt_times"),
        ({"exp": 1e300}, "jwt_times"),
        ({"exp": -1}, "jwt_times"),
        ({"exp": NOW + MAX_LIFE_S + 1}, "jwt_times"),
        ({"iat": None}, "jwt_times"),
        ({"iat": NOW + 61}, "jwt_early"),
        ({"nbf": NOW + 61}, "jwt_early"),
        ({"nbf": "soon"}, "jwt_times"),
        ({"sub": None}, "jwt_subject"),
        ({"sub": ""}, "jwt_subject"),
        ({"sub": 7}, "jwt_subject"),
        ({"sub": "x" * 256}, "jwt_subject"),
    ],
)
def test_a_token_with_one_wrong_claim_is_refused_by_it(claims, reason):
    assert refusal(ISSUED.token(**claims)) == reason


@pytest.mark.parametrize("audience", ["domicile-api", ["domicile-api"], ["another", "domicile-api"]])
def test_it_may_be_meant_for_several(audience):
    assert judged(ISSUED.token(aud=audience))


@pytest.mark.parametrize(
    ("offset", "good"), [(-60, True), (-61, False), (0, True), (599, True), (659, True), (660, False)]
)
def test_clocks_may_differ_by_the_skew_and_no_more(offset, good):
    token = ISSUED.token()
    if good:
        assert judged(token, now=NOW + offset)
    else:
        assert refusal(token, now=NOW + offset) in {"jwt_early", "jwt_expired"}


def test_without_skew_the_instants_are_exact():
    token = ISSUED.token(nbf=NOW)
    assert judged(token, now=NOW, skew_s=0)
    assert refusal(token, now=NOW - 1, skew_s=0) == "jwt_early"
    assert refusal(token, now=NOW + 600, skew_s=0) == "jwt_expired"


# --- logins ----------------------------------------------------------------------------------------------------------


def login(**more):
    return check_login(ISSUED.claims(aud="domicile", nonce="n", **more), client_id="domicile", nonce="n")


def test_an_id_token_is_for_our_login_and_this_one():
    login()
    login(azp="domicile")
    with pytest.raises(JwtRefused, match="issued to another client"):
        login(azp="another")
    for nonce in ("m", None, ["n"], ""):
        with pytest.raises(JwtRefused, match="another login"):
            check_login(ISSUED.claims(aud="domicile", nonce=nonce), client_id="domicile", nonce="n")


def test_an_id_token_for_several_says_who_it_was_issued_to():
    several = {"aud": ["domicile", "another"], "nonce": "n"}
    with pytest.raises(JwtRefused):
        check_login(ISSUED.claims(**several), client_id="domicile", nonce="n")
    check_login(ISSUED.claims(**several, azp="domicile"), client_id="domicile", nonce="n")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_only_keys_that_may_sign_are_taken_from_a_set():
    good = key().as_dict(private=False)
    document = {
        "keys": [
            good,
            {**good, "use": "enc"},
            key("mac", "oct").as_dict(private=True),
            {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
            {"kty": "quantum", "kid": "later"},
            "nonsense",
            None,
        ]
    }
    assert [each.kid for each in public_keys(document)] == ["k1"]
    assert public_keys({}) == public_keys({"keys": "x"}) == public_keys({"keys": {"a": 1}}) == []


def test_a_short_rsa_key_is_not_believed():
    import warnings

    from joserfc.jwk import RSAKey

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = RSAKey.generate_key(1024, {"kid": "short"})
    assert public_keys({"keys": [short.as_dict(private=False)]}) == []
