"""Calls to Vault: what fails is named, what may pass is tried again a few times, and the token goes nowhere else."""

import datetime
import ipaddress
import logging
import os
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from audit.errors import KeyProviderError
from gateway.configuration.settings import Secrets, Vault
from gateway.secrets import vault as errors
from tests.fakes.vault import TOKEN, running_vault


def test_a_key_is_made_and_read(vault, connect):
    client = connect()
    assert client.post("keys/a", {"type": "aes256-gcm96", "derived": True}) == {}
    assert client.get("keys/a")["derived"] is True


@pytest.mark.parametrize(
    ("prepare", "error", "said"),
    [
        ({"sealed": True}, errors.VaultSealed, "Vault is sealed"),
        ({"tokens": set()}, errors.VaultDenied, "permission denied"),
        ({"forbidden": ("keys",)}, errors.VaultDenied, "permission denied"),
        ({}, errors.VaultMissing, "404"),
        ({"namespace": "other"}, errors.VaultMissing, "no handler"),
    ],
)
def test_each_way_of_failing_has_a_name_and_is_a_provider_that_fails(vault, connect, prepare, error, said):
    for name, value in prepare.items():
        setattr(vault, name, value)
    with pytest.raises(error, match=said) as told:
        connect(retries=0).get("keys/none")
    assert isinstance(told.value, KeyProviderError)
    assert TOKEN not in str(told.value)


def test_what_vault_refuses_is_told_in_its_words_without_what_was_sent(vault, connect):
    with pytest.raises(errors.VaultRefused) as told:
        connect().post("encrypt/none", {"plaintext": "c2VjcmV0"})
    assert told.value.errors == ("encryption key not found",)
    assert "c2VjcmV0" not in str(told.value)


@pytest.mark.parametrize("order", [412, 429, 500, 502, 503, "drop", "hang"])
def test_what_may_pass_is_tried_again(vault, connect, order):
    vault.manage("a", "", {})
    vault.fail = [order, order]
    assert connect(retries=2).get("keys/a")["name"] == "a"


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (503, errors.VaultSealed),
        (500, errors.VaultError),
        ("drop", errors.VaultUnreachable),
        ("hang", errors.VaultUnreachable),
    ],
)
def test_but_not_for_ever(vault, connect, order, error):
    vault.manage("a", "", {})
    vault.fail = [order] * 10
    with pytest.raises(error):
        connect(retries=2).get("keys/a")
    assert len(vault.fail) == 7


@pytest.mark.parametrize("order", [400, 403, 404, 405])
def test_what_will_not_pass_is_asked_once(vault, connect, order):
    vault.fail = [order, order]
    with pytest.raises(errors.VaultError):
        connect().get("keys/a")
    assert vault.fail == [order]


def test_what_may_have_taken_effect_is_not_repeated(vault, connect):
    vault.manage("a", "", {})
    vault.fail_after = ["hang"]
    with pytest.raises(errors.VaultUnreachable):
        connect().post("keys/a/rotate", {}, repeatable=False)
    assert vault.keys["a"].latest == 2


def test_nobody_listens(connect):
    with pytest.raises(errors.VaultUnreachable, match="ConnectError"):
        connect(address="http://127.0.0.1:1", retries=1).get("keys/a")


def test_a_redirect_is_not_followed_with_the_token(vault, connect):
    vault.fail = [307]
    with pytest.raises(errors.VaultError, match="active node"):
        connect().get("keys/a")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 7}', b'{"data": "' + b"x" * (2 << 20) + b'"}'])
def test_what_is_not_vault_is_not_believed(vault, connect, body):
    vault.manage("a", "", {})
    vault.body = body
    with pytest.raises(errors.VaultUnreachable, match="not Vault"):
        connect().get("keys/a")


def test_vaults_words_reach_a_terminal_short_and_without_escapes(vault, connect):
    vault.tokens = set()
    vault.answer = lambda *_: (_ for _ in ()).throw(_refusal("\x1b[2J" + "x" * 5000))
    with pytest.raises(errors.VaultDenied) as told:
        connect().get("keys/a")
    assert "\x1b" not in str(told.value)
    assert len(str(told.value)) < 500


def _refusal(text):
    from tests.fakes.vault import Refusal

    return Refusal(403, text)


# --- token -----------------------------------------------------------------------------------------------------------


def test_a_token_that_was_replaced_is_read_anew(vault, connect, token_file):
    vault.manage("a", "", {})
    client = connect()
    client.get("keys/a")
    vault.tokens = {"hvs.second"}
    with pytest.raises(errors.VaultDenied):
        client.get("keys/a")
    token_file.write_text("hvs.second")
    assert client.get("keys/a")


def test_a_token_replaced_while_asking_is_tried_at_once(vault, connect, token_file):
    vault.manage("a", "", {})
    client, real = connect(), vault.answer

    def replaced(*call):
        vault.answer = real
        vault.tokens = {"hvs.second"}
        token_file.write_text("hvs.second")
        return real(*call)

    vault.answer = replaced
    assert client.get("keys/a")


def test_a_token_behind_a_link_is_taken_since_agents_write_it_so(connect, token_file, vault):
    vault.manage("a", "", {})
    link = token_file.with_name("link")
    link.symlink_to(token_file)
    assert connect(token_file=link).get("keys/a")


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (TOKEN, 0o644, "run chmod o-rwx on it"),
        (TOKEN, 0o602, "run chmod o-rwx on it"),
        ("", 0o600, "no token"),
        ("hvs.a\r\nx-evil: 1", 0o600, "no token"),
        ("hvs.ä", 0o600, "cannot be read"),
        (None, 0o600, "No such file"),
    ],
)
def test_a_token_that_is_loose_absent_or_none_is_refused_unread(connect, token_file, content, mode, said):
    if content is None:
        token_file.unlink()
    else:
        token_file.write_text(content, encoding="utf-8")
        os.chmod(token_file, mode)
    with pytest.raises(errors.VaultDenied, match=said) as told:
        connect()
    assert "hvs." not in str(told.value)


def test_the_namespace_goes_with_every_call(vault, connect):
    vault.namespace = "team/eu"
    vault.manage("a", "", {})
    assert connect(namespace="team/eu").get("keys/a")


def test_neither_token_nor_body_is_logged(vault, connect, caplog):
    caplog.set_level(logging.DEBUG)
    vault.manage("a", "", {"derived": True})
    vault.fail = [500]
    connect().post("encrypt/a", {"plaintext": "c2VjcmV0", "context": "YQ=="})
    assert "trying again" in caplog.text
    assert TOKEN not in caplog.text
    assert "c2VjcmV0" not in caplog.text


def test_no_proxy_of_the_environment_sees_the_token(vault, connect, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    vault.manage("a", "", {})
    assert connect().get("keys/a")


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of 127.0.0.1, and its key: in one file."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vault")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "vault.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_server_that_the_ca_file_does_not_know_gets_no_token(certificate, connect, token_file):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with running_vault(tls=context) as vault:
        vault.manage("a", "", {})
        assert connect(address=vault.url, ca_file=certificate, timeout_s=5).get("keys/a")
        seen = len(vault.calls)
        with pytest.raises(errors.VaultUnreachable):
            connect(address=vault.url, retries=0).get("keys/a")
        assert len(vault.calls) == seen
    with pytest.raises(KeyProviderError, match="ca_file"):
        connect(ca_file=token_file.with_name("none"))


@pytest.mark.parametrize(
    "address",
    [
        "http://vault.example:8200",
        "http://10.0.0.1:8200",
        "https://user:pass@vault.example",
        "https://vault.example/v1",
        "https://vault.example?x=1",
        "ftp://127.0.0.1",
        "vault.example:8200",
        "https://",
        "http://[::1",
        "http://127.0.0.1.evil.example",
    ],
)
def test_an_address_off_this_host_without_tls_or_that_is_none_is_refused(address):
    with pytest.raises(ValidationError, match="https URL"):
        Vault(address=address)


@pytest.mark.parametrize("address", ["https://vault.example:8200", "http://127.0.0.1:8200/", "http://[::1]:8200"])
def test_an_address_with_tls_or_on_this_host_is_taken(address):
    assert Vault(address=address).address == address


def test_the_provider_vault_needs_an_address_and_a_token():
    with pytest.raises(ValidationError, match=r"vault\.address or vault\.token_file is missing"):
        Secrets(provider="vault", vault=Vault(address="https://vault.example"))
    with pytest.raises(KeyProviderError, match=r"secrets\.vault\.address"):
        errors.VaultClient(Vault())


@pytest.mark.parametrize("name", ["../sys", "a b", "a/../b", "", "a?x"])
def test_a_name_that_would_lead_elsewhere_is_refused(name):
    for field in ("mount", "key", "signing_key"):
        with pytest.raises(ValidationError):
            Vault(**{field: name})
