"""Random keys in the formats that their vendors publish."""

import random
import re
import string

_ALPHABETS = {
    "x": string.ascii_letters + string.digits, "n": string.digits, "U": string.ascii_uppercase + string.digits,
    "h": "0123456789abcdef", "l": string.ascii_lowercase + string.digits,
    "u": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
}  # fmt: skip
# {xN}: N signs of the alphabet x above.
FORMATS: dict[str, str] = {
    "aws": "AKIA{U16}", "aws session": "ASIA{U16}", "google api": "AIza{u35}", "google oauth": "ya29.{u60}",
    "google client": "GOCSPX-{u28}",
    "azure client": "{x3}8Q~{u34}", "github": "ghp_{x36}", "github fine": "github_pat_{x22}_{x59}",
    "gitlab": "glpat-{u20}",
    "gitlab deploy": "gldt-{u20}", "gitlab runner": "glrt-{u20}", "slack bot": "xoxb-{n12}-{n12}-{x24}",
    "slack app": "xapp-1-{U11}-{n13}-{h64}",
    "slack hook": "https://hooks.slack.com/services/T{U8}/B{U8}/{x24}", "stripe": "sk_live_{x24}",
    "stripe restricted": "rk_live_{x24}",
    "stripe hook": "whsec_{x32}", "openai": "sk-proj-{u48}", "anthropic": "sk-ant-api03-{u93}AA",
    "hugging face": "hf_{x34}", "npm": "npm_{x36}",
    "pypi": "pypi-AgEIcHlwaS5vcmc{u60}", "twilio": "SK{h32}", "sendgrid": "SG.{u22}.{u43}", "mailgun": "key-{h32}",
    "mailchimp": "{h32}-us12",
    "telegram": "{n10}:AA{u33}", "discord hook": "https://discord.com/api/webhooks/{n18}/{u68}",
    "databricks": "dapi{h32}",
    "digitalocean": "dop_v1_{h64}", "heroku": "HRKU-{h8}-{h4}-{h4}-{h4}-{h12}", "atlassian": "ATATT3xFfGF0{u60}={U8}",
    "shopify": "shpat_{h32}",
    "square": "EAAA{u60}", "square old": "sq0atp-{u22}", "paypal": "access_token$production${l16}${h32}",
    "linear": "lin_api_{x40}",
    "vault": "hvs.{u90}", "vault old": "s.{x24}", "grafana": "glsa_{x32}_{h8}", "terraform": "{x14}.atlasv1.{u64}",
    "new relic": "NRAK-{U27}",
    "docker": "dckr_pat_{u27}", "figma": "figd_{u40}", "postman": "PMAK-{h24}-{h34}", "pulumi": "pul-{h40}",
    "jwt": "eyJhbGciOiJFUzI1NiJ9.eyJ{u60}.{u86}",
    "groq": "gsk_{x52}", "replicate": "r8_{x37}", "mapbox": "sk.eyJ{x60}.{u22}", "dynatrace": "dt0c01.{U24}.{U64}",
    "age": "AGE-SECRET-KEY-1{U58}",
    "notion": "ntn_{x46}", "airtable": "pat{x14}.{h64}", "asana": "2/{n16}/{n16}:{h32}", "sentry": "sntrys_eyJ{b60}",
    "doppler": "dp.pt.{x43}",
    "scaleway": "SCW{U17}", "tailscale": "tskey-auth-{x16}-{x32}", "fly": "FlyV1 fm2_{b120}",
    "planetscale": "pscale_tkn_{u43}",
    "netlify": "nfp_{x36}", "supabase": "sbp_{h40}", "rubygems": "rubygems_{h48}", "clojars": "CLOJARS_{h60}",
    "artifactory": "AKCp{x69}",
}  # fmt: skip
_PIECE = re.compile(r"\{([a-zA-Z])([0-9]+)\}")


def secret(rng: random.Random, vendor: str | None = None) -> str:
    """A key of `vendor`, or of any."""
    shape = FORMATS[vendor or rng.choice(sorted(FORMATS))]
    return _PIECE.sub(
        lambda piece: (
            "".join(rng.choice(_ALPHABETS[piece[1]]) for _ in range(int(piece[2]) - 1)) + rng.choice(_digits(piece[1]))
        ),
        shape,
    )


def _digits(alphabet: str) -> str:
    return "".join(sign for sign in _ALPHABETS[alphabet] if sign.isdigit())
