"""A real identity provider in a process of its own (oidc-provider-mock), and a browser that keeps cookies."""

import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2

from tests.fakes.ports import free_port


class Idp:
    """`users`: set by `put`. The process can be ended, as outages do."""

    def __init__(self, process, base):
        self.process = process
        self.issuer = base

    def put(self, subject, **claims):
        _asked("PUT", f"{self.issuer}/users/{subject}", json=claims).raise_for_status()

    def consent(self, url, subject):
        """What a person does at the provider's page: say who they are. Where they are sent then."""
        answer = _asked("POST", url, data={"sub": subject})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    def deny(self, url):
        return _asked("POST", url, data={"action": "deny"}).headers["location"]


@contextmanager
def running_idp():
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        base = f"http://127.0.0.1:{port}"
        try:
            _wait(process, base)
            yield Idp(process, base)
        finally:
            process.terminate()


def _wait(process, base):
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None
        try:
            _asked("GET", f"{base}/.well-known/openid-configuration").raise_for_status()
            return
        except httpx2.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _asked(method, url, **more):
    """Over plain HTTP. With `verify`, each request would read the system's certificates, which takes 20 ms."""
    return httpx2.request(method, url, verify=False, **more)


def path_of(url):
    """What a browser asks of the host in `url`."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"
