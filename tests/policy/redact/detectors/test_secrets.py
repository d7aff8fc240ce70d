import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.redact.detectors import secrets
from policy.redact.detectors.secrets import find_secrets
from tests.data.redaction.fresh_secrets import FORMATS, secret

AZURE = "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6QUJDREVGR0hJSktMTU5PUFFSU1RVVg=="


def found(text: str) -> str:
    return " ".join(text[start:end] for start, end in find_secrets(text, 0))


@pytest.mark.parametrize("frame", ["look at {} please", "{}", 'x = "{}"', "({}),", "a\n{}\nb"])
@pytest.mark.parametrize("vendor", FORMATS)
def test_every_vendors_key_is_found_whole_without_a_word_that_names_it(vendor, frame):
    rng = random.Random(vendor)
    for _ in range(4):
        key = secret(rng, vendor)
        assert key.rstrip("=") in found(frame.format(key))


@pytest.mark.parametrize("vendor", sorted(set(FORMATS) - {"jwt", "mapbox", "sentry", "fly", "anthropic", "slack app"}))
def test_the_beginning_of_a_key_alone_is_left_alone(vendor):
    prefix = FORMATS[vendor].partition("{")[0]
    assert found(f"keys begin with {prefix} and a word") == found(f"{prefix}-example {prefix}your-key-goes-here") == ""


@pytest.mark.parametrize(
    ("text", "secret"),
    [("password: hunter2Xyz9", "hunter2Xyz9"), ('"api_key": "a8f5f167f44f4964"', "a8f5f167f44f4964"),
     ("phrase de passe : Kiwi-7-Mango-9", "Kiwi-7-Mango-9"), ("frase secreta: Perro-9-Gato", "Perro-9-Gato"),
     ("frase d'accesso: Gatto-9-Sole", "Gatto-9-Sole"),
     ("Das Kennwort ist Tr0ub4dor3x.", "Tr0ub4dor3x"), ("mot de passe : Xk29vLm4pQ", "Xk29vLm4pQ"),
     ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
     ("Authorization: Bearer a8f5f167f44f4964e6", "a8f5f167f44f4964e6"),
     ("DB=postgres://app:s3cret9x@db.example.org/x", "postgres://app:s3cret9x@db.example.org/x"),
     ("redis://:p@ss9word@cache:6379/0.", "redis://:p@ss9word@cache:6379/0"),
     ("парола: mE7-tuR-kiv-92x", "mE7-tuR-kiv-92x"), ("κωδικός πρόσβασης: mE7-tuR-kiv-92x", "mE7-tuR-kiv-92x"),
     ("parolă: Sommer2024!Haus", "Sommer2024!Haus"),
     ("token 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", "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"), ("AKIAWGNAJPTHSUOKGAQU",
     "AKIAWGNAJPTHSUOKGAQU"),
     (f"AccountName=acme;AccountKey={AZURE};EndpointSuffix=core.windows.net", AZURE),
     ("jdbc:postgresql://db/x?user=app&password=Xk29vLm4pQ", "Xk29vLm4pQ"),
     ("Server=db;User Id=app;Password=Xk29!vLm4p;", "Xk29!vLm4p"),
     ("machine db.example.org login app password Xk29vLm4pQ", "Xk29vLm4pQ"), ("Authorization: Basic YXBwOnMzY3JldDl4",
     "YXBwOnMzY3JldDl4"),
     ("password: ^8Kd&q(Zp)2!x'", "^8Kd&q(Zp)2!x"), ("password = '^8Kd&q(Zp)2!x'", "^8Kd&q(Zp)2!x"),
     ("<password>Xk29vLm4pQ</password>", "Xk29vLm4pQ"),
     ("passord er Xk29vLm4pQ", "Xk29vLm4pQ"), ("--password Xk29vLm4pQ", "Xk29vLm4pQ"), ("X-Api-Key: 8f14e45fceea167a",
     "8f14e45fceea167a"),
     ("clientSecret: abCD!efGH$ij", "abCD!efGH$ij"), ("https://acme.blob.core.windows.net/c?sv=2022&sig=Zm9vYmFyMTIzNDU"
                                                      "2Nzg5MGFiY2RlZmdoaWprbG1ub3BxcnM%3D",
                                                      "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1ub3BxcnM%3D")],
)  # fmt: skip
def test_a_secret_is_found_where_its_name_or_place_shows_it(text, secret):
    assert secret in [text[start:end] for start, end in find_secrets(text, 0)]


@pytest.mark.parametrize(
    "text",
    ["password: correcthorse", "the token is counted", "key: 12345678", "secret = aaaaaaaa1", "a8f5f167f44f4964",
     "https://example.org:8080/x@y", "password = os.environ['DB_PASSWORD1']", "token = get_token(user1)",
     "PASSWORD=$DB_PASSWORD_1",
     "the password field1 is empty", "password: ${DB_PASSWORD1}", "token=<your-token-1>", "api_key: str | None = None"],
)  # fmt: skip
def test_words_and_plain_numbers_beside_such_names_are_left_alone(text):
    assert list(find_secrets(text, 0)) == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [("mysql -u root -p'Sommer3988!' shop", "Sommer3988!"), ("docker login -p Tr0ub4dor&8 -u ci hub", "Tr0ub4dor&8"),
    ("-p'fsBj0EaNo3OMDWOzB8Uj'", "fsBj0EaNo3OMDWOzB8Uj"),
     ("curl -u admin:MAQqE4gwRZ2p#93 https://a.example", "MAQqE4gwRZ2p#93"), ("sshpass -p Sommer2829! ssh host",
     "Sommer2829!"),
     ("PGPASSWORD=y(hgZYyLxq53QL psql", "y(hgZYyLxq53QL"), ("login with password Sommer7747! please", "Sommer7747")],
)  # fmt: skip
def test_a_password_on_a_command_line_is_found(text, secret):
    assert secret in found(text)


@pytest.mark.parametrize(
    "key", ["rk_live_AEbcCHpPpHoZeWaFogawjrGs", "sk_live_NzMmzoFvSVTNqQkCompmHFmi", "glpat-kvBfoeWBdpbeOCSNfmFc"]
)
def test_a_key_without_a_digit_is_found_where_cases_are_mixed(key):
    assert found(f"key {key} here") == key


@pytest.mark.parametrize("text", ["docker run -p 8080:80 nginx", "mkdir -p build/x86_64-linux-gnu", "ssh -p 2222 host",
"cp -a dir1 dir2",
                                  'password = get_secret("db2-prod-eu1")', "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                                  "rk_live_your_key_goes_here_please",
                                  "the password needs 12-64 signs"])  # fmt: skip
def test_other_options_calls_and_samples_are_no_secret(text):
    assert found(text) == ""


@pytest.mark.parametrize(("text", "value"), [
    ('password: a"b1c2d3e4', 'a"b1c2d3e4'), ('password: pa"ss\\w0rd!X9', 'pa"ss\\w0rd!X9'), ("password='it's4me!x'",
    "it's4me!x"),
    ("code d'accès: Xk9#pl!", "Xk9#pl!"), ("Code secret : Xk9#pl!77", "Xk9#pl!77"), ("Zugangscode: Xk9#pl!", "Xk9#pl!"),
    ("codice di accesso: Xk9#pl!2", "Xk9#pl!2"), ("código de acceso: Xk9#pl!2", "Xk9#pl!2"), ("clave: Xk9#pl!",
    "Xk9#pl!"),
    ("mot de passe: Ete2024!", "Ete2024!"), ("mdp : L'ete2024!", "L'ete2024!"), ("Mot de passe du compte : Ete2024?",
    "Ete2024?"),
    ("Passwort: Sommer-2024!", "Sommer-2024!"), ("Passwort: hunter2", "hunter2"), ("clave: P@ss'w0rd!", "P@ss'w0rd!"),
    ("API-Schlüssel: 8f3kd93kd0Xk", "8f3kd93kd0Xk"), ("clé d'API : q_x8Yw02Lq19z", "q_x8Yw02Lq19z"),
    ("password='it''s-4-secret!'", "it''s-4-secret!"), ("DB_PASSWORD='x;y\"z9,K'", 'x;y"z9,K'),
    ('"password": "a,b;c|d1E"', "a,b;c|d1E"),
    ("WiFi-Schlüssel: 4711-Koeln-Dom", "4711-Koeln-Dom"), ('psk="Kaff33-m1t;milch"', "Kaff33-m1t;milch"),
    ("pre-shared key: Zug5pitze!", "Zug5pitze!"),
    ("clé wifi : 7Fh2-9Kd1-Qm3x", "7Fh2-9Kd1-Qm3x"), ("chiave di rete: 7Fh29Kd1", "7Fh29Kd1"),
    ("WPA2 key = 9f8e7d6c5b4a", "9f8e7d6c5b4a"),
])  # fmt: skip
def test_a_value_with_quotes_inside_or_a_sign_at_its_end_is_found_whole(text, value):
    assert [text[start:end] for start, end in find_secrets(text, 0)] == [value]


@pytest.mark.parametrize(("text", "value"), [
    ('{"password": "abc12345X", "user": "x"}', "abc12345X"), ('{"password":"abc12345X"}', "abc12345X"),
    ("def f(password='abc1234x', b='c'):", "abc1234x"), ("(password: abc12345)", "abc12345"),
    ('<a title="password=abc12345X">', "abc12345X"),
])  # fmt: skip
def test_a_quote_that_ends_a_value_is_no_part_of_it(text, value):
    assert [text[start:end] for start, end in find_secrets(text, 0)] == [value]


@pytest.mark.parametrize(
    "text",
    ["Bad activity token: android.os.BinderProxy@2bd79ce", "token: abc12", "clave: primavera", "jeton: voir page 3",
     "password = ''", '"password":"","user":"bob1234x"', "key_mgmt: WPA-PSK2x", "epsk=12ab34cd56ef",
     'password="${DB_PASSWORD1}"'],
)  # fmt: skip
def test_objects_short_tokens_and_words_are_no_secrets(text):
    assert list(find_secrets(text, 0)) == []


NAMED_PIECES = st.sampled_from(
    ["password", "api key", "token", "bearer", "mot de passe", "senha", "geslo", " ", "  ", ":", "=", "is", " is ",
    " est ",
     "é", "'", '"', "hunter2x", "and", "thesis", "\n", "=>", "basic ", "İs", "Token "]
)  # fmt: skip


@given(st.lists(NAMED_PIECES, max_size=10).map("".join), st.integers(0, 40))
def test_the_quick_looks_before_a_search_for_values_miss_none(text, start):
    start = min(start, len(text))
    small, reach = secrets.lowered(text), max(0, start - secrets.NAMES_REACH)
    heads = [match.span() for match in secrets._VALUE_NEXT.finditer(small, reach)]
    expected = sorted(end for begin, end in heads if end >= start and end - begin <= secrets.NAMES_REACH)
    assert secrets.values_from(text, start) == expected
    if secrets._NAMED.search(small):
        assert secrets._may_join(text) and secrets._has_name(small)


@given(st.lists(NAMED_PIECES, max_size=10).map("".join), st.integers(0, 40))
def test_the_scan_of_a_stream_misses_no_value_whose_name_ends_behind_what_was_scanned(text, start):
    start = min(start, len(text))
    reach = max(0, start - secrets.NAMES_REACH)
    if not secrets.has_start(text[reach:start]) and secrets.values_from(text, start):
        assert secrets.may_begin(text, start)


@settings(max_examples=300)
@given(st.from_regex(secrets._VALUE_NEXT))
def test_every_name_of_a_secret_has_a_part_that_the_scan_looks_for(text):
    small = secrets.lowered(text)
    for named in secrets._VALUE_NEXT.finditer(small):
        assert secrets.has_start(named[0])


def test_half_of_a_surrogate_pair_hides_no_secret():
    text = "password: \ud800 hunter2xY9, password: hunter2xY9"
    assert any("hunter2xY9" in text[first:last] for first, last in secrets.find_secrets(text, 0))
    assert secrets.count_names(text) == 2


_ALNUM = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA" * 12
_HEX = "0a1b2c3d4e5f67890f1e2d3c4b5a6978" * 12


@pytest.mark.parametrize(
    "key",
    [
        "A3-" + "-".join(("ABC123", "DEF456", "GH7JK", "LM8NP", "QR9ST", "UV2WX")),
        f"ops_eyJ{_ALNUM[:260]}",
        f"p8e-{_HEX[:32]}",
        f"LTAI{_ALNUM[:20]}",
        f"v1.0-{_HEX[:24]}-{_HEX[:146]}",
        f"duffel_live_{_ALNUM[:43]}",
        f"EZAK{_ALNUM[:54]}",
        f"FLWSECK_TEST-{_HEX[:32]}-X",
        f"pat.{_ALNUM[:22]}.{_HEX[:24]}.{_ALNUM[:20]}",
        f"s-s4t2ud-{_HEX[:64]}",
        f"live_{_HEX[:35]}",
        f"API-{_ALNUM[:28].upper()}",
        f"sha256~{_ALNUM[:43]}",
        "access-production-" + "-".join((_HEX[:8], _HEX[:4], _HEX[4:8], _HEX[8:12], _HEX[:12])),
        f"rdme_{_HEX[:70]}",
        f"sm_pat_{_ALNUM[:16]}",
        f"shippo_live_{_HEX[:40]}",
        f"squ_{_HEX[:40]}",
        f"sgp_{_HEX[:16]}_{_HEX[:40]}",
        f"AQVN{_ALNUM[:36]}",
        f"ABSK{_ALNUM[:110]}",
        f"GR1348941{_ALNUM[:20]}",
        f"fo1_{_ALNUM[:43]}",
        f"NRII-{_ALNUM[:32]}",
        f"pnu_{_HEX[:36]}",
        f"cmVmd{_ALNUM[:59]}",
    ],
)
def test_keys_of_more_vendors_are_found_by_their_prefix(key):
    text = f"use {key} here"
    assert [text[start:end] for start, end in find_secrets(text, 0)] == [key]
    assert list(find_secrets(f"use x{key} here", 0)) == [] or key.startswith("A3-")
