"""Requests whose end two readers could see at two places, through a real nginx and a real HAProxy: none hides another.

Each entry of the corpus is sent to the proxy as it is, over a kept connection, and asks for one path; what it carries
asks for /hidden. Both proxies keep connections to the gateway and pass `Upgrade` on, which is how a desynchronised
connection would hand one client's answer to another.
"""

import asyncio
import shutil
import subprocess
from contextlib import asynccontextmanager, contextmanager

import pytest

from gateway.configuration.settings import Listen
from gateway.server.serve import serving
from tests.fakes.needs import missing
from tests.fakes.ports import free_port
from tests.gateway.server.test_connection import SEEN, application, forget

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
ASK = b"POST /asked HTTP/1.1\r\nhost: x\r\n"
LENGTH = b"content-length: %d\r\n" % len(HIDDEN)

CORPUS = {
    "CL.TE": ASK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE.CL": ASK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": ASK + b"content-length: 0\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "length list": ASK + b"content-length: 0, 33\r\n\r\n" + HIDDEN,
    "signed length": ASK + b"content-length: +0\r\n\r\n" + HIDDEN,
    "space before colon": ASK + b"content-length : 0\r\n\r\n" + HIDDEN,
    "TE space": ASK + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE tab": ASK + b"transfer-encoding:\tchunked\r\n" + LENGTH + b"\r\n0\r\n\r\n" + HIDDEN,
    "TE vertical tab": ASK + b"transfer-encoding:\x0bchunked\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "TE identity": ASK + b"transfer-encoding: identity\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "TE twice": ASK + b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE gzip": ASK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE in a folded line": ASK + b"x: y\r\n transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "TE behind a lone CR": ASK + b"x: y\rtransfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "TE behind a lone LF": ASK + b"x: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE in HTTP/1.0": b"POST /asked HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunk with a sign": ASK + b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
    "chunk in hexadecimal": ASK + b"transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
    "chunk too large": ASK + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff0\r\n" + HIDDEN,
    "chunk ends in LF": ASK + b"transfer-encoding: chunked\r\n\r\n1\nA\n0\n\n" + HIDDEN,
    "chunk extension": ASK + b"transfer-encoding: chunked\r\n\r\n21;a=\nb\r\n" + HIDDEN + b"\r\n0\r\n\r\n",
    "chunk longer than said": ASK + b"transfer-encoding: chunked\r\n\r\n2\r\n" + HIDDEN + b"\r\n0\r\n\r\n",
    "trailers": ASK + b"transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 33\r\nhost: evil\r\n\r\n",
    "upgrade h2c": ASK
    + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    + LENGTH
    + b"\r\n"
    + HIDDEN,
    "upgrade websocket": ASK + b"connection: upgrade\r\nupgrade: websocket\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "upgrade chunked": ASK
    + b"connection: upgrade\r\nupgrade: foo\r\ntransfer-encoding: chunked\r\n\r\n21\r\n"
    + HIDDEN
    + b"\r\n0\r\n\r\n",
    "expect": ASK + b"expect: 100-continue\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "expect of something else": ASK + b"expect: 200-ok\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "refused unread": b"POST /refused HTTP/1.1\r\nhost: x\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "body of a GET": b"GET /asked HTTP/1.1\r\nhost: x\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "absolute target": b"POST http://evil/asked HTTP/1.1\r\nhost: x\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "two hosts": ASK + b"host: y\r\n" + LENGTH + b"\r\n" + HIDDEN,
    "zero byte": ASK + b"x: a\x00b\r\n" + LENGTH + b"\r\n" + HIDDEN,
}

NGINX = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $passed {{ default upgrade; '' ''; }}
  upstream gateway {{ server 127.0.0.1:{behind}; keepalive 4; }}
  server {{ listen 127.0.0.1:{front};
    location / {{ proxy_pass http://gateway; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_next_upstream off; proxy_read_timeout 5s;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $passed; proxy_set_header Host $host; }} }}
}}
"""
HAPROXY = """
global
  maxconn 64
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
  http-reuse always
listen gateway
  bind 127.0.0.1:{front}
  server one 127.0.0.1:{behind}
"""
PROXIES = {"nginx": (NGINX, ("-c", "{file}", "-p", "{folder}")), "haproxy": (HAPROXY, ("-db", "-f", "{file}"))}


@contextmanager
def proxy(name, folder, behind):
    command = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if command is None:
        missing(f"{name} is not installed: apt-get install {name}")
    front = free_port()
    text, arguments = PROXIES[name]
    file = folder / f"{name}.conf"
    file.write_text(text.format(folder=folder, front=front, behind=behind))
    with subprocess.Popen(
        [command, *(each.format(file=file, folder=folder) for each in arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield front
        finally:
            process.terminate()


@asynccontextmanager
async def client(port):
    for _ in range(200):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            await asyncio.sleep(0.05)
    else:
        raise AssertionError("the proxy did not start")
    yield reader, writer
    writer.close()


async def answers(port, sent):
    """The status of each answer until nothing comes for a moment."""
    said = b""
    async with client(port) as (reader, writer):
        head, end, body = sent.partition(b"\r\n\r\n")
        writer.write(head + end)
        await asyncio.sleep(0.03)  # in a segment of its own the body may be taken for the next request
        writer.write(body)
        try:
            while piece := await asyncio.wait_for(reader.read(1 << 16), 0.3):
                said += piece
        except (TimeoutError, ConnectionError):
            pass
    return [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:] if not part.startswith(b"100")]


@pytest.mark.parametrize("name", [None, *PROXIES], ids=["direct", *PROXIES])
async def test_no_request_hides_another(tmp_path, name):
    async with serving(application, Listen(port=0)) as port:
        if name is None:
            await the_corpus_holds(port, direct=True)
        else:
            with proxy(name, tmp_path, port) as front:
                await the_corpus_holds(front, direct=False)


async def the_corpus_holds(port, *, direct):
    for what, sent in CORPUS.items():
        forget()
        got = await answers(port, sent)
        paths = [path for _, path, _ in SEEN]
        # A proxy may read two requests where we would refuse the first, and send us two; then its client gets two
        # answers. A request that was smuggled past it would leave one answer over, for another client.
        assert "/hidden" not in paths or (not direct and len(got) == len(paths)), (what, paths, got)
        assert len(got) <= max(1, len(paths)), (what, paths, got)
        forget()
        assert await answers(port, b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") == [200], what
        assert [path for _, path, _ in SEEN] == ["/next"], f"{what}: the next client gets an answer of its own"
