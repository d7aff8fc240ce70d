"""A running gateway that reads its settings again, and one that is told to stop while balancers still send calls.

The process is the command as an operator runs it.
"""

import asyncio
import shutil
import signal
import socket
import ssl
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes.lab import chat
from tests.gateway.test_stopping import ended, gateway, installation

BIG = chat("x" * 4000)


async def said(tmp_path, words, times=1):
    """Once the gateway's log has `words` so often."""
    log = tmp_path / "up.log"
    async with asyncio.timeout(60):
        while log.read_text().count(words) < times:
            await asyncio.sleep(0.02)
    return log.read_text()


def configure(tmp_path, **settings):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"listen": {"port": 0}, "node": "gw-1", **settings}))


class Asking:
    def __init__(self, made, base, http):
        self._headers, self._base, self._http = {"authorization": f"Bearer {made.key()}"}, base, http

    async def __call__(self, body=None, path="/v1/chat/completions"):
        method = "GET" if body is None else "POST"
        async with self._http.request(method, self._base + path, json=body, headers=self._headers) as answer:
            await answer.read()
            return answer


async def test_changed_settings_are_put_in_force_on_sighup_and_what_cannot_be_is_named(tmp_path):
    async with (
        installation(tmp_path) as (made, _),
        gateway(made, tmp_path) as (process, base),
        aiohttp.ClientSession() as http,
    ):
        ask = Asking(made, base, http)
        assert (await ask(BIG)).status == 200
        assert (await ask(path="/metrics")).status == 200
        changed = {"port": 0, "operations_from": ["192.0.2.0/24"], "lame_duck_s": 1}
        configure(tmp_path, listen=changed, requests={"max_body_bytes": 2000})
        process.send_signal(signal.SIGHUP)
        log = await said(tmp_path, "settings reloaded:")
        assert (
            "applied listen.operations_from, requests.max_body_bytes; restart the gateway for listen.lame_duck_s" in log
        )
        assert (await ask(BIG)).status == 413
        assert (await ask(chat("hi"))).status == 200
        assert (await ask(path="/metrics")).status == 404

        (tmp_path / "config.yaml").write_text("requests: {max_body_bytes: many}\n")
        process.send_signal(signal.SIGHUP)
        log = await said(tmp_path, "the settings were not reloaded, the running ones stay")
        assert "requests.max_body_bytes" in log
        assert (await ask(chat("hi"))).status == 200
        assert (await ask(BIG)).status == 413

        configure(tmp_path)
        process.send_signal(signal.SIGHUP)
        await said(tmp_path, "settings reloaded:", 2)
        assert (await ask(BIG)).status == 200
        process.terminate()
        assert await ended(process) == 0
    reloads = [event for event in made.events("_system") if event["type"] == "system.reloaded"]
    assert [(event["applied"], event.get("pending", [])) for event in reloads] == [
        (["listen.operations_from", "requests.max_body_bytes"], ["listen.lame_duck_s"]),
        (["listen.operations_from", "requests.max_body_bytes"], []),
    ]
    assert made.verify().ok


def server_certificate(folder, name):
    """A certificate for this host of a new key, signed by itself; the paths of it and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    private.chmod(0o600)
    return certificate, private


def encrypted(file):
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"a password of theirs")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def shown(base):
    """The subject of the certificate that a new connection is shown."""
    host, port = base.removeprefix("https://").split(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()


async def test_a_renewed_certificate_is_shown_to_new_connections_and_running_ones_go_on(tmp_path):
    certificate, key = server_certificate(tmp_path / "tls", "first")
    listen = {"port": 0, "cert_file": str(certificate), "key_file": str(key)}
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with (
        installation(tmp_path) as (made, _),
        gateway(made, tmp_path, listen=listen) as (process, base),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting, limit=1)) as http,
    ):
        ask = Asking(made, base, http)
        assert (await ask(chat("hi"))).status == 200
        assert await asyncio.to_thread(shown, base) == "CN=first"

        server_certificate(tmp_path / "tls", "second")
        process.send_signal(signal.SIGHUP)
        await said(tmp_path, "settings reloaded: applied listen.cert_file")
        assert await asyncio.to_thread(shown, base) == "CN=second"
        assert (await ask(chat("hi"))).status == 200, "on the connection of before"

        other, _ = server_certificate(tmp_path / "other", "third")
        shutil.copy(other, certificate)  # a certificate whose key is not there yet
        process.send_signal(signal.SIGHUP)
        log = await said(tmp_path, "the settings were not reloaded")
        assert "not a certificate with its key" in log
        key.write_bytes(encrypted(tmp_path / "other" / "key.pem"))  # for which OpenSSL would ask at the terminal
        process.send_signal(signal.SIGHUP)
        await said(tmp_path, "the settings were not reloaded", 2)
        assert await asyncio.to_thread(shown, base) == "CN=second"
        shutil.copy(tmp_path / "other" / "key.pem", key)
        process.send_signal(signal.SIGHUP)
        await said(tmp_path, "settings reloaded: applied listen.cert_file", 2)
        assert await asyncio.to_thread(shown, base) == "CN=third"


async def test_after_sigterm_calls_are_taken_until_the_lame_duck_time_is_over(tmp_path):
    async with (
        installation(tmp_path) as (made, _),
        gateway(made, tmp_path, listen={"port": 0, "lame_duck_s": 200}) as (process, base),
        aiohttp.ClientSession() as http,
    ):
        ask = Asking(made, base, http)
        kept = await ask(chat("hi"))
        assert "connection" not in kept.headers
        assert (await ask(path="/readyz")).status == 200
        process.terminate()
        await said(tmp_path, "not ready any more")
        answer = await ask(path="/readyz")
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert (await ask(path="/healthz")).status == 200
        host, port = base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 10):  # a new connection is taken
            pass
        for stream in (False, True):
            answer = await ask(chat("hi", stream=stream))
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert process.returncode is None
        process.terminate()  # the second time it is meant at once
        assert await ended(process) == 0
    assert made.types().count("inference.completed") == 3
    assert made.events("_system")[-1]["type"] == "system.stop"


@pytest.mark.parametrize(("number", "lame_duck_s"), [(signal.SIGINT, 200), (signal.SIGTERM, 0.3)])
async def test_sigint_ends_it_at_once_and_sigterm_once_the_time_is_over(tmp_path, number, lame_duck_s):
    async with (
        installation(tmp_path) as (made, _),
        gateway(made, tmp_path, listen={"port": 0, "lame_duck_s": lame_duck_s}) as (process, _base),
    ):
        process.send_signal(number)
        assert await ended(process) == 0
