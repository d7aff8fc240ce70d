"""An identity provider that signs whatever it is told to: discovery and keys over a transport, tokens by `token`."""

import json
from functools import cache
from urllib.parse import parse_qs

import httpx2
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

ISSUER = "https://id.example.eu/realms/acme"
NOW = 1_800_000_000


@cache
def key(kid="k1", kind="RSA", **more):
    """Made once: RSA keys take their time."""
    parameters = {"kid": kid, **more}
    match kind:
        case "RSA":
            return RSAKey.generate_key(2048, parameters)
        case "EC":
            return ECKey.generate_key("P-256", parameters)
        case "OKP":
            return OKPKey.generate_key("Ed25519", parameters)
        case _:
            return OctKey.generate_key(256, parameters)


class Issuer:
    """`down`: does not answer. `asked`: what was asked for, by path. `redeems`: answer to a code `sent`."""

    def __init__(self, *keys, issuer=ISSUER, **metadata):
        self.issuer = issuer
        self.keys = list(keys) or [key()]
        self.metadata = metadata
        self.down = False
        self.redeems = httpx2.Response(400, json={"error": "invalid_grant"})
        self.sent = {}
        self.asked = []

    @property
    def transport(self):
        return httpx2.MockTransport(self._answer)

    def _answer(self, request):
        self.asked.append(request.url.path)
        if self.down:
            raise httpx2.ConnectError("refused", request=request)
        if request.url.path.endswith("/.well-known/openid-configuration"):
            said = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
            }
            return httpx2.Response(200, json=said | self.metadata)
        if request.url.path.endswith("/jwks"):
            return httpx2.Response(200, json={"keys": [each.as_dict(private=False) for each in self.keys]})
        if request.url.path.endswith("/token"):
            self.sent = {name: value for name, (value,) in parse_qs(request.content.decode()).items()}
            self.sent["authorization"] = request.headers.get("authorization")
            return self.redeems
        return httpx2.Response(404)

    def claims(self, **more):
        said = {
            "iss": self.issuer, "sub": "robot", "aud": "domicile-api", "iat": NOW, "exp": NOW + 600,
            "groups": ["platform"],
        } | more  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    def token(self, signer=None, *, alg="RS256", header=(), payload=None, **claims):
        """Signed by `signer` (the first key by default). A claim of None is left out; `payload`: text instead."""
        signer = signer or self.keys[0]
        said = {"alg": alg, "typ": "JWT", "kid": signer.kid, **dict(header)}
        said = {name: value for name, value in said.items() if value is not None}
        body = payload if payload is not None else json.dumps(self.claims(**claims))
        registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
        registry.max_header_length = registry.max_payload_length = 1 << 20
        return jws.serialize_compact(said, body.encode(), signer, registry=registry)
