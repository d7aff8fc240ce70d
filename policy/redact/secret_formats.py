# ruff: noqa: E501  # tables read better in one line a row
"""The shapes of keys as their vendors publish them: by the prefix they begin with, or by a sign inside.

Sources are the vendors' own pages on the format of their keys: AWS IAM identifiers, Google Cloud API keys and OAuth,
Microsoft Entra client secrets and Azure Storage, GitHub and GitLab token prefixes, Slack, Stripe, OpenAI, Anthropic,
Hugging Face, npm, PyPI (prefix of macaroons), Twilio, SendGrid, Mailgun, Mailchimp, Telegram, Discord, Databricks,
DigitalOcean, Heroku, Atlassian, Shopify, Square, PayPal (Braintree), Scaleway, HashiCorp Vault and Terraform, Grafana,
New Relic, Docker, Figma, Postman, Pulumi, Linear, Notion, Airtable, Asana, Sentry, Doppler, Tailscale, Fly, PlanetScale,
Netlify, Supabase, RubyGems, Clojars, Artifactory, Groq, xAI, Replicate, Perplexity, Mapbox, Dynatrace, age.
Keys without a mark of their own (Hetzner, OVH, older Heroku and Cloudflare ones) count beside a word: `secrets`.
"""

import re
from typing import NamedTuple

# prefix -> pattern of what follows it
_FOLLOWING: dict[str, str] = {
    "dom_live_": r"[A-Za-z0-9_]{20,80}",  # ours
    "AKIA": r"[A-Z0-9]{16}", "ASIA": r"[A-Z0-9]{16}", "ABIA": r"[A-Z0-9]{16}", "ACCA": r"[A-Z0-9]{16}",
    "AIza": r"[A-Za-z0-9_-]{35}", "ya29.": r"[A-Za-z0-9_-]{20,1024}", "GOCSPX-": r"[A-Za-z0-9_-]{20,64}", "1//0": r"[A-Za-z0-9_-]{40,200}",
    "ghp_": r"[A-Za-z0-9]{30,255}", "gho_": r"[A-Za-z0-9]{30,255}", "ghu_": r"[A-Za-z0-9]{30,255}", "ghs_": r"[A-Za-z0-9]{30,255}",
    "ghr_": r"[A-Za-z0-9]{30,255}", "github_pat_": r"[A-Za-z0-9_]{22,255}",
    **{f"gl{kind}-": r"[A-Za-z0-9_.-]{20,255}" for kind in ("pat", "rt", "dt", "ptt", "ft", "soat", "imt", "agent", "cbt", "oas")},
    "xoxb-": r"[A-Za-z0-9-]{10,250}", "xoxp-": r"[A-Za-z0-9-]{10,250}", "xoxa-": r"[A-Za-z0-9-]{10,250}", "xoxr-": r"[A-Za-z0-9-]{10,250}",
    "xoxs-": r"[A-Za-z0-9-]{10,250}", "xoxe-": r"[A-Za-z0-9-]{10,250}", "xoxe.": r"[A-Za-z0-9.-]{10,250}", "xoxc-": r"[A-Za-z0-9-]{10,250}",
    "xoxd-": r"[A-Za-z0-9%-]{10,250}", "xapp-": r"[A-Za-z0-9-]{10,250}",
    "sk_live_": r"[A-Za-z0-9]{16,128}", "sk_test_": r"[A-Za-z0-9]{16,128}", "rk_live_": r"[A-Za-z0-9]{16,128}",
    "rk_test_": r"[A-Za-z0-9]{16,128}", "whsec_": r"[A-Za-z0-9+/=]{24,128}",
    "sk-": r"[A-Za-z0-9_-]{16,255}", "gsk_": r"[A-Za-z0-9]{40,64}", "xai-": r"[A-Za-z0-9]{40,96}", "r8_": r"[A-Za-z0-9]{30,48}",
    "pplx-": r"[A-Za-z0-9]{40,64}", "nvapi-": r"[A-Za-z0-9_-]{40,96}", "hf_": r"[A-Za-z0-9]{30,64}", "api_org_": r"[A-Za-z0-9]{30,64}",
    "fw_": r"[A-Za-z0-9]{22,48}", "csk-": r"[a-z0-9]{40,64}", "tgp_v1_": r"[A-Za-z0-9_-]{40,64}",
    "npm_": r"[A-Za-z0-9]{36}", "pypi-": r"[A-Za-z0-9_-]{50,1024}", "rubygems_": r"[a-f0-9]{48}", "CLOJARS_": r"[a-z0-9]{60}",
    "dckr_pat_": r"[A-Za-z0-9_-]{20,64}", "dckr_oat_": r"[A-Za-z0-9_-]{20,64}", "AKCp": r"[A-Za-z0-9]{60,80}",
    "SK": r"[a-f0-9]{32}", "SG.": r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}", "key-": r"[a-f0-9]{32}", "xkeysib-": r"[a-f0-9]{64}-[A-Za-z0-9]{16}",
    "dapi": r"[a-f0-9]{32}(?:-[0-9])?", "dkea": r"[a-f0-9]{32}", "dop_v1_": r"[a-f0-9]{64}", "doo_v1_": r"[a-f0-9]{64}", "dor_v1_": r"[a-f0-9]{64}",
    "HRKU-": r"[A-Za-z0-9_-]{36,64}", "ATATT3": r"[A-Za-z0-9_=-]{40,255}", "ATCTT3": r"[A-Za-z0-9_=-]{40,255}", "ATBB": r"[A-Za-z0-9]{32}",
    "shpat_": r"[a-fA-F0-9]{32}", "shpss_": r"[a-fA-F0-9]{32}", "shpca_": r"[a-fA-F0-9]{32}", "shppa_": r"[a-fA-F0-9]{32}",
    "sq0csp-": r"[A-Za-z0-9_-]{30,64}", "sq0atp-": r"[A-Za-z0-9_-]{20,64}", "sq0idp-": r"[A-Za-z0-9_-]{20,64}", "EAAA": r"[A-Za-z0-9_-]{56,64}",
    "EAAC": r"[A-Za-z0-9]{60,255}", "SCW": r"[A-Z0-9]{17}", "hvs.": r"[A-Za-z0-9_-]{24,255}", "hvb.": r"[A-Za-z0-9_-]{24,255}", "hvr.": r"[A-Za-z0-9_-]{24,255}",
    "s.": r"(?=[a-z0-9]{0,23}[A-Z])(?=[A-Z0-9]{0,23}[a-z])[A-Za-z0-9]{24}(?![A-Za-z0-9.])", "glsa_": r"[A-Za-z0-9]{32}_[a-f0-9]{8}", "glc_": r"[A-Za-z0-9+/=]{32,400}",
    "NRAK-": r"[A-Z0-9]{27}", "lin_api_": r"[A-Za-z0-9]{32,64}", "lin_oauth_": r"[A-Za-z0-9]{32,64}", "figd_": r"[A-Za-z0-9_-]{30,64}",
    "tskey-": r"[A-Za-z0-9-]{16,96}", "sntrys_": r"[A-Za-z0-9_=+/-]{40,400}", "sntryu_": r"[a-f0-9]{64}", "dp.pt.": r"[A-Za-z0-9]{40,64}", "dp.st.": r"[A-Za-z0-9._-]{40,80}",
    "PMAK-": r"[a-f0-9-]{50,64}", "pul-": r"[a-f0-9]{40}", "ntn_": r"[A-Za-z0-9]{40,64}", "secret_": r"[A-Za-z0-9]{43}", "sbp_": r"[a-f0-9]{40}",
    "pscale_tkn_": r"[A-Za-z0-9_.=-]{32,64}", "pscale_pw_": r"[A-Za-z0-9_.=-]{32,64}", "nfp_": r"[A-Za-z0-9]{36,40}", "vercel_": r"[A-Za-z0-9]{24}",
    "sk.eyJ": r"[A-Za-z0-9_-]{20,300}\.[A-Za-z0-9_-]{20,64}", "dt0c01.": r"[A-Z0-9]{24}\.[A-Z0-9]{64}", "pat": r"[A-Za-z0-9]{14}\.[a-f0-9]{64}", "FlyV1 fm2_": r"[A-Za-z0-9+/=,_]{40,800}",
    "fm2_": r"[A-Za-z0-9+/=_]{100,800}", "fio-u-": r"[A-Za-z0-9_=-]{64}", "AGE-SECRET-KEY-1": r"[A-Z0-9]{58}", "CFPAT-": r"[A-Za-z0-9_-]{43}",
    "access_token$": r"(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]{32}", "PRVT-": r"[A-Za-z0-9-]{20,80}", "phx_": r"[A-Za-z0-9]{40,60}", "eyJ": r"[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?",
}  # fmt: skip
_WITHOUT_DIGIT = frozenset(
    {"eyJ", "hf_", "AKIA", "ASIA"}
)  # of what follows the others, some sign is a digit: prose with hyphens has none
# One in seventy of these has none; then capitals and small letters are mixed.
_SELDOM_WITHOUT = frozenset(
    {"sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
     "AIza", "npm_", "dckr_pat_", "dckr_oat_", "hvs.", "SG.", "glsa_", "shpat_"}
)  # fmt: skip
_ANY_DIGIT = r"(?=[A-Za-z_./+$-]{0,64}[0-9])"
_DIGIT_OR_CASES = r"(?=[A-Za-z_./+$-]{0,64}[0-9]|[A-Z_-]{0,16}[a-z_-]{1,16}[A-Z]{1,16}[a-z])"


class Inside(NamedTuple):
    """A key known by `sign` inside it: searched from up to ``before`` characters in front of that."""

    sign: str
    before: int
    pattern: re.Pattern[str]


PREFIXED: dict[str, re.Pattern[str]] = {
    prefix: re.compile(
        re.escape(prefix)
        + ("" if prefix in _WITHOUT_DIGIT else _DIGIT_OR_CASES if prefix in _SELDOM_WITHOUT else _ANY_DIGIT)
        + rest
    )
    for prefix, rest in _FOLLOWING.items()
}
INSIDE: tuple[Inside, ...] = (
    Inside("Q~", 5, re.compile(r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,36}")),  # Entra client secret
    Inside(":AA", 12, re.compile(r"(?<![A-Za-z0-9])[0-9]{8,11}:AA[A-Za-z0-9_-]{32,35}(?![A-Za-z0-9_-])")),  # Telegram bot
    Inside("/services/T", 40, re.compile(r"https://hooks\.slack\.com/services/T[A-Za-z0-9]{6,12}/B[A-Za-z0-9]{6,12}/[A-Za-z0-9]{20,32}")),
    Inside("/api/webhooks/", 40, re.compile(r"https://(?:[a-z]{2,8}\.)?discord(?:app)?\.com/api/webhooks/[0-9]{16,20}/[A-Za-z0-9_-]{60,80}")),
    Inside(".atlasv1.", 20, re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}")),
    Inside("-us", 33, re.compile(r"(?<![A-Za-z0-9])[a-f0-9]{32}-us[0-9]{1,2}(?![A-Za-z0-9])")),  # Mailchimp
    Inside("2/", 0, re.compile(r"2/[0-9]{14,20}(?:/[0-9]{14,20})?:[a-f0-9]{32}(?![a-f0-9])")),  # Asana
    Inside("0/", 0, re.compile(r"0/[a-f0-9]{32}(?![a-f0-9])")),
    Inside(".G", 30, re.compile(r"(?<![A-Za-z0-9_.-])[MNO][A-Za-z0-9_-]{23,27}\.G[A-Za-z0-9_-]{5}\.[A-Za-z0-9_-]{27,40}")),  # Discord bot
    Inside("AccountKey=", 0, re.compile(r"AccountKey=(?P<secret>[A-Za-z0-9+/]{60,90}={0,2})")),  # Azure Storage
    Inside("sig=", 0, re.compile(r"sig=(?P<secret>[A-Za-z0-9%+/_-]{40,80}={0,2})")),  # shared access signature
)  # fmt: skip
