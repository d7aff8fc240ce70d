"""An identity provider with the device flow (RFC 8628), refresh (RFC 6749 §6) and revocation (RFC 7009), on loopback.

A refresh token is good for one use, as the security BCP for OAuth asks of public clients; a second use ends all.
"""

import secrets
import time
from contextlib import asynccontextmanager

from aiohttp import web

from tests.fakes.issuer import Issuer

CLIENT = "domicile-cli"
GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class DeviceProvider:
    """`says`: errors of the next polls, before the person has logged in. `claims`: of the person. `asked`: forms."""

    def __init__(self):
        self.says, self.claims, self.asked, self.refresh_tokens, self.spent = [], {}, [], set(), []
        self.down = False
        self.refreshes = True
        self.metadata = {}

    @asynccontextmanager
    async def running(self):
        app = web.Application(middlewares=[self._outage])
        app.add_routes(
            [
                web.get("/.well-known/openid-configuration", self._configuration),
                web.get("/jwks", self._keys),
                web.post("/device", self._begin),
                web.post("/token", self._token),
                web.post("/revoke", self._revoke),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.issuer = Issuer(issuer=self.url)
        try:
            yield self
        finally:
            await runner.cleanup()

    def id_token(self, **more):
        now = int(time.time())
        said = {"iss": self.url, "sub": "ada", "aud": CLIENT, "iat": now, "exp": now + 300, "jti": secrets.token_hex(8)}
        return self.issuer.token(**{**said, **self.claims, **more})

    @web.middleware
    async def _outage(self, request, handler):
        if self.down:
            return web.Response(status=503)
        return await handler(request)

    async def _configuration(self, request):
        named = {
            "issuer": "",
            "authorization_endpoint": "/authorize",
            "token_endpoint": "/token",
            "jwks_uri": "/jwks",
            "device_authorization_endpoint": "/device",
            "revocation_endpoint": "/revoke",
        }
        return web.json_response({name: self.url + path for name, path in named.items()} | self.metadata)

    async def _keys(self, request):
        return web.json_response({"keys": [each.as_dict(private=False) for each in self.issuer.keys]})

    async def _begin(self, request):
        self.asked.append(dict(await request.post()))
        return web.json_response(
            {
                "device_code": "the-device-code",
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.url}/activate",
                "verification_uri_complete": f"{self.url}/activate?user_code=WDJB-MJHT",
                "expires_in": 600,
                "interval": 0,
            }
        )

    async def _token(self, request):
        form = dict(await request.post())
        self.asked.append(form)
        if form["grant_type"] == GRANT:
            if self.says:
                return web.json_response({"error": self.says.pop(0)}, status=400)
        elif (old := form["refresh_token"]) in self.refresh_tokens:
            self.refresh_tokens.remove(old)
            self.spent.append(old)
        else:
            self.refresh_tokens.clear()
            return web.json_response({"error": "invalid_grant", "error_description": old}, status=400)
        said = {"id_token": self.id_token(), "access_token": "for nobody", "token_type": "Bearer"}
        if self.refreshes:
            said["refresh_token"] = secrets.token_hex(16)
            self.refresh_tokens.add(said["refresh_token"])
        return web.json_response(said)

    async def _revoke(self, request):
        self.refresh_tokens.discard((await request.post())["token"])
        return web.Response()
