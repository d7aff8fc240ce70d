"""Why data is processed: the words for legal bases, risk classes and special categories.

Sources: GDPR 6(1)(a)-(f), 9(1), 9(2)(a)-(j); AI Act 5, 6.
"""

from typing import Literal, get_args

LegalBasis = Literal[
    "consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"
]
RiskClass = Literal["minimal", "limited", "high", "prohibited"]

LEGAL_BASES: dict[str, str] = {
    "consent": "6(1)(a)",
    "contract": "6(1)(b)",
    "legal_obligation": "6(1)(c)",
    "vital_interests": "6(1)(d)",
    "public_task": "6(1)(e)",
    "legitimate_interests": "6(1)(f)",
}
RISK_CLASSES = frozenset({"minimal", "limited", "high", "prohibited"})
SpecialCategory = Literal[
    "special_category",
    "racial_or_ethnic_origin",
    "political_opinions",
    "religious_or_philosophical_beliefs",
    "trade_union_membership",
    "genetic",
    "biometric",
    "health",
    "sex_life_or_orientation",
]
SPECIAL_CATEGORIES: frozenset[str] = frozenset(get_args(SpecialCategory))

Article9Ground = Literal[
    "9(2)(a)", "9(2)(b)", "9(2)(c)", "9(2)(d)", "9(2)(e)", "9(2)(f)", "9(2)(g)", "9(2)(h)", "9(2)(i)", "9(2)(j)"
]
"""What lifts the ban on special categories: explicit consent (a) to archiving and research (j)."""

_BY_ARTICLE = {article: name for name, article in LEGAL_BASES.items()}


def legal_basis_name(text: str) -> str:
    """``6(1)(b)`` and ``contract`` are the same basis; anything else is returned as it came."""
    return _BY_ARTICLE.get(text, text)
