"""A provider that hangs, drips or floods: logins fail in time, and nothing else of the admin API waits for it."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from gateway.admin.app import build_admin
from gateway.configuration.settings import Oidc
from gateway.identity import provider as module
from gateway.identity.provider import IdentityProvider
from tests.fakes.issuer import key
from tests.gateway.admin.conftest import counted

ORIGIN = "http://127.0.0.1:8400"


class Slow(ThreadingHTTPServer):
    """An issuer whose token endpoint behaves as `mode` says; the rest answers at once."""

    daemon_threads = True
    mode = "hangs"

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.asked = []
        self.over = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        base = self.server.base
        if self.path == "/jwks":
            return self.answer(httpx2.Response(200, json={"keys": [key().as_dict(private=False)]}).content)
        said = {"issuer": base, "end_session_endpoint": f"{base}/bye", **self.server.metadata}
        said |= {f"{name}_endpoint": f"{base}/{name}" for name in ("authorization", "token")}
        self.answer(httpx2.Response(200, json={**said, "jwks_uri": f"{base}/jwks"}).content)

    def do_POST(self):
        self.server.asked.append(self.path)
        try:
            if self.server.mode == "drips in its head":
                while not self.server.over.wait(0.05):
                    self.wfile.write(b"H")
            if self.server.mode == "hangs":
                self.server.over.wait(20)
            self.send_response(200)
            self.end_headers()
            while self.server.mode == "drips" and not self.server.over.wait(0.05):
                self.wfile.write(b" ")
            for _ in range(300 if self.server.mode == "floods" else 0):
                self.wfile.write(b" " * 1_000_000)
        except OSError:
            pass
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def slow_issuer(mode="hangs", **metadata):
    with Slow() as server:
        server.mode, server.metadata = mode, metadata
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()


@contextmanager
def admin(app, server, monkeypatch, deadline_s=0.5):
    monkeypatch.setattr(module, "DEADLINE_S", deadline_s)
    settings = Oidc(issuer=server.base, client_id="domicile", redirect_uri=f"{ORIGIN}/callback", roles=[])
    refused = []
    yield (
        build_admin(
            replace(
                app.state.context,
                provider=IdentityProvider(settings),
                on_refused=counted(refused),
            )
        ),
        refused,
    )


def browser(admin_app):
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(admin_app), base_url=ORIGIN, timeout=30)


async def come_back(client):
    begun = await client.get("/login")
    state = httpx2.URL(begun.headers["location"]).params["state"]
    return await client.get("/callback", params={"code": "made-up", "state": state})


@pytest.mark.parametrize("mode", ["hangs", "drips", "drips in its head", "floods"])
async def test_logins_end_in_time_and_the_rest_of_the_admin_api_is_not_held(app, login, monkeypatch, mode):
    token = login(None, "operator")
    with slow_issuer(mode) as server, admin(app, server, monkeypatch) as (admin_app, _):
        clients = [browser(admin_app) for _ in range(45)]
        logins = [asyncio.create_task(come_back(client)) for client in clients]
        await asyncio.sleep(0.2)
        async with browser(admin_app) as other:
            assert (await other.get("/me", headers=token)).status_code == 200
            held = [login for login in logins if not login.done()]
        answers = await asyncio.wait_for(asyncio.gather(*logins), 20)
        for client in clients:
            await client.aclose()
        assert held, "it was answered while the issuer kept others waiting"
        assert {answer.status_code for answer in answers} == {503}
        assert len(server.asked) < 45, "the breaker spares a provider that does not answer"


async def test_a_callback_that_was_not_begun_here_asks_the_provider_nothing(app, monkeypatch):
    with slow_issuer() as server, admin(app, server, monkeypatch) as (admin_app, refused):
        async with browser(admin_app) as client:
            for cookie in ("s.n.v.", "s.n.v..." + "0", "s.n.v...9999999999." + "a" * 64, "", "." * 9):
                client.cookies.set("domicile-login", cookie)
                assert (await client.get("/callback", params={"code": "c", "state": "s"})).status_code == 403
        assert server.asked == [] and set(refused) == {"login_state"}


async def test_a_login_that_is_too_old_is_over_whatever_the_browser_kept(app, clock, monkeypatch):
    with slow_issuer() as server, admin(app, server, monkeypatch) as (admin_app, refused):
        async with browser(admin_app) as client:
            begun = await client.get("/login")
            clock.now += timedelta(seconds=601)
            state = httpx2.URL(begun.headers["location"]).params["state"]
            assert (await client.get("/callback", params={"code": "c", "state": state})).status_code == 403
        assert server.asked == [] and refused == ["login_state"]


@pytest.mark.parametrize(
    ("advertised", "iss", "reason"),
    [(True, None, "login_issuer"), (True, "https://evil.example", "login_issuer"), (False, "x", "login_issuer"),
     (True, "own", None), (False, None, None)],
)  # fmt: skip
async def test_an_issuer_that_says_that_it_names_itself_must(app, monkeypatch, advertised, iss, reason):
    said = {"authorization_response_iss_parameter_supported": advertised}
    with slow_issuer("answers", **said) as server, admin(app, server, monkeypatch) as (admin_app, refused):
        async with browser(admin_app) as client:
            begun = await client.get("/login")
            state = httpx2.URL(begun.headers["location"]).params["state"]
            named = {} if iss is None else {"iss": server.base if iss == "own" else iss}
            answer = await client.get("/callback", params={"code": "c", "state": state, **named})
        assert (answer.status_code, refused) == ((403, [reason]) if reason else (503, []))
        assert bool(server.asked) == (reason is None)
