"""JSON Web Tokens, parsed strictly (RFC 7519, RFC 8725): nothing in a token is used before all checks pass.

In this order: size and shape; a header that names a pinned, asymmetric algorithm and brings no key of its own; a key
that is known already; the signature; no duplicate member; issuer, audience, times. Pure: keys and clock are passed in.

    JwtRefused (a KeyRefused)   `reason` is a code for the record; no message quotes the token
"""

import binascii
import hmac
import json
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, OKPKey, RSAKey

from gateway.identity.keys import KeyRefused

MAX_SIZE = 8192
"""Characters of a token: a header line of a usual server."""
MAX_LIFE_S = 86400
"""Longest life of a machine's token, from `iat` to `exp`: one that is stolen must not work for long."""
MIN_RSA_BITS = 2048
MAX_DEVICE_AGE_S = 300
"""Between the issue of an ID token to a command line and the login with it."""

ALGORITHMS: Mapping[str, type[Key]] = {
    "RS256": RSAKey, "RS384": RSAKey, "RS512": RSAKey, "PS256": RSAKey, "PS384": RSAKey, "PS512": RSAKey,
    "ES256": ECKey, "ES384": ECKey, "ES512": ECKey, "Ed25519": OKPKey,
}  # fmt: skip
"""Each with the one kind of key it may be used with: neither ``none`` nor any MAC, whose key would be public here.

Nor ``EdDSA``, which does not say of which curve (RFC 9864)."""

_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HEADER = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
"""Not `jku`, `jwk`, `x5u`, `x5c` (keys that the sender chose) nor `crit`, `b64` (rules that we do not know)."""
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_TIMES = ("exp", "iat", "nbf")


class JwtRefused(KeyRefused):
    """The token is not to be believed."""

    fix = "get a new token from the identity provider"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def reason_of(error: KeyRefused) -> str:
    """The reason code of a refusal, as in the record."""
    return error.reason if isinstance(error, JwtRefused) else type(error).__name__.removeprefix("Key").lower()


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an unverified token; only for finding the key."""

    alg: str
    kid: str | None


def looks_like_jwt(credential: str) -> bool:
    """Whether it is to be judged as one; our own keys have no dot."""
    return credential.count(".") == 2


def stated_issuer(token: str) -> str | None:
    """The ``iss`` of an unverified token, only for finding out whose keys to check it by; None where there is none."""
    if len(token) > MAX_SIZE or not _SHAPE.fullmatch(token):
        return None
    try:
        issuer = _members(_decoded(token.split(".")[1])).get("iss")
    except JwtRefused:
        return None
    return issuer if isinstance(issuer, str) else None


def read_header(token: str) -> Header:
    """Raises JwtRefused."""
    if len(token) > MAX_SIZE:
        raise JwtRefused("jwt_size", f"the token is longer than {MAX_SIZE} characters")
    if not _SHAPE.fullmatch(token):
        raise JwtRefused("jwt_shape", "the token is not a signed JSON Web Token")
    header = _members(_decoded(token.split(".")[0]))
    alg, kid, typ = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(alg, str) or alg not in ALGORITHMS:
        raise JwtRefused(
            "jwt_algorithm",
            f"the token's algorithm is not one of {', '.join(ALGORITHMS)}"
            "; set the provider's signing algorithm to one of them",
        )
    if header.keys() - _HEADER or not isinstance(typ, str) or typ.lower() not in _TYPES:
        raise JwtRefused("jwt_header", "the token's header has a member that is not allowed here")
    if kid is not None and not isinstance(kid, str):
        raise JwtRefused("jwt_header", "the token's kid is not a string")
    return Header(alg, kid)


def verified_claims(token: str, header: Header, key: Key) -> dict[str, Any]:
    """The claims of a token that `key` signed. `header` is that of `read_header`. Raises JwtRefused."""
    stated = key.as_dict(private=False).get("alg", header.alg)
    if not isinstance(key, ALGORITHMS[header.alg]) or stated != header.alg:
        raise JwtRefused(
            "jwt_algorithm",
            "the token's algorithm is not that of its key; use the algorithm that the provider publishes for it",
        )
    try:
        signed = jws.deserialize_compact(token, key, algorithms=[header.alg], registry=_registry(header.alg))
    except (JoseError, ValueError, TypeError) as error:
        raise JwtRefused("jwt_signature", "the token's signature does not fit") from error
    return _members(signed.payload or b"")


def check_claims(claims: Mapping[str, Any], *, issuer: str, audience: str, now: float, skew_s: int) -> None:
    """Issuer, audience, times and subject. Raises JwtRefused.

    `now`: seconds since 1970. `skew_s`: how far the provider's clock may be from ours. `exp` and `iat` must be there.
    """
    if claims.get("iss") != issuer:
        raise JwtRefused(
            "jwt_issuer",
            "the token is not from the issuer that is trusted here; get one from the issuer in oidc.issuer",
        )
    if audience not in audiences(claims):
        raise JwtRefused("jwt_audience", "the token is for another audience; ask the provider for one of this API")
    times = {name: _instant(claims, name) for name in _TIMES if name in claims}
    if "exp" not in times or "iat" not in times:
        raise JwtRefused(
            "jwt_times", "the token does not say when it was issued and when it ends; let the provider set iat and exp"
        )
    if times["exp"] + skew_s <= now:
        raise JwtRefused("jwt_expired", "the token has expired; get a new one")
    if max(times["iat"], times.get("nbf", 0)) - skew_s > now:
        raise JwtRefused("jwt_early", "the token is not valid yet; compare the clocks of this host and the provider")
    if not 0 < times["exp"] - times["iat"] <= MAX_LIFE_S:
        raise JwtRefused(
            "jwt_times", f"the token lives longer than {MAX_LIFE_S // 3600} hours; let the provider issue shorter ones"
        )
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise JwtRefused("jwt_subject", "the token names no subject; let the provider set sub")


def check_login(claims: Mapping[str, Any], *, client_id: str, nonce: str) -> None:
    """Further checks of an ID token: made for our client, and for this login (OpenID Connect Core §3.1.3.7)."""
    _check_party(claims, client_id)
    claimed = claims.get("nonce")
    if not isinstance(claimed, str) or not hmac.compare_digest(claimed.encode(), nonce.encode()):
        raise JwtRefused("jwt_nonce", "the token answers another login; log in again")


def authentication_time(claims: Mapping[str, Any], *, now: float, skew_s: int) -> float | None:
    """When the person last showed the provider who they are (``auth_time``), in seconds since 1970, not after `now`;
    None where the provider does not say. Raises JwtRefused."""
    if "auth_time" not in claims:
        return None
    at = _instant(claims, "auth_time")
    if at - skew_s > now:
        raise JwtRefused(
            "jwt_early", "the token says that you will sign in; compare the clocks of this host and the provider"
        )
    return min(at, now)


def check_device_login(claims: Mapping[str, Any], *, client_id: str, now: float, skew_s: int) -> None:
    """As `check_login`, of an ID token that a command line got for itself: no nonce binds it to a login of ours, so it
    has to be new."""
    _check_party(claims, client_id)
    if now - claims["iat"] > MAX_DEVICE_AGE_S + skew_s:
        raise JwtRefused("jwt_old", "the token was issued too long ago to log in with; get a new one")


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    party = claims.get("azp")
    if party != client_id if party is not None else len(audiences(claims)) > 1:
        raise JwtRefused("jwt_audience", "the token was issued to another client; log in to this one")


def audiences(claims: Mapping[str, Any]) -> tuple[str, ...]:
    audience = claims.get("aud")
    audience = [audience] if isinstance(audience, str) else audience
    if isinstance(audience, list) and all(isinstance(each, str) for each in audience):
        return tuple(audience)
    return ()


def public_keys(document: Mapping[str, Any]) -> list[Key]:
    """The keys of a JWK set (RFC 7517 §5) that may have signed a token; others in it are passed over."""
    listed = document.get("keys")
    return [key for each in listed if (key := _public_key(each)) is not None] if isinstance(listed, list) else []


def _public_key(jwk: Any) -> Key | None:
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or jwk.get("kty") not in {"RSA", "EC", "OKP"}:
        return None
    try:
        if jwk["kty"] == "RSA" and int.from_bytes(_decoded(jwk["n"])).bit_length() < MIN_RSA_BITS:
            return None
        return JWKRegistry.import_key({name: value for name, value in jwk.items() if name in _PUBLIC})
    except (JoseError, JwtRefused, ValueError, TypeError, KeyError):
        return None


_PUBLIC = frozenset({"kty", "kid", "alg", "use", "n", "e", "crv", "x", "y"})


def _registry(algorithm: str) -> jws.JWSRegistry:
    registry = jws.JWSRegistry(algorithms=[algorithm])
    registry.max_header_length = registry.max_payload_length = registry.max_signature_length = MAX_SIZE
    return registry


def _decoded(segment: str) -> bytes:
    try:
        return urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except (binascii.Error, ValueError) as error:
        raise JwtRefused("jwt_shape", "the token is not a signed JSON Web Token") from error


def _members(text: bytes) -> dict[str, Any]:
    """A JSON object without duplicate members, which two readers could understand differently."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError
        return members

    try:
        read = json.loads(text.decode(), object_pairs_hook=once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise JwtRefused("jwt_shape", "the token is not made of JSON objects without duplicate members") from error
    if not isinstance(read, dict):
        raise JwtRefused("jwt_shape", "the token is not made of JSON objects")
    return read


def _no_number(word: str) -> None:
    raise ValueError


def _instant(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53 or math.isnan(value):
        raise JwtRefused("jwt_times", f"the token's {name} is not an instant")
    return float(value)
