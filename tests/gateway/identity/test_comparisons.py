"""Secrets are compared in a time that does not tell how much of them fits: a look at every comparison in the source."""

import ast
from pathlib import Path

import pytest

TREE = Path(__file__).parents[3]
MODULES = sorted((TREE / "gateway").rglob("*.py"))
SECRET = {"secret", "token", "credential", "digest", "mac", "signature", "nonce", "verifier", "pepper", "state", "code"}
NO_SECRET = {
    ("gateway/store/change.py", "digest"),  # of a record, which its reader may see: an ETag
}
"""What is called so and is none."""


def comparisons(tree):
    """(line, names compared by == or !=, or looked for by `in`) of each comparison that is not with a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            sides = [node.left, *node.comparators]
            if not any(isinstance(side, ast.Constant) for side in sides):
                yield node.lineno, {name for side in sides if (name := called(side)) is not None}


def called(node):
    """`token` of ``row.token``, ``token()``, ``token.encode()`` and ``claims["token"]``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name != "encode":
            return name
        case ast.Attribute(value=inner) | ast.Call(func=inner):
            return called(inner)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return None


def test_no_secret_is_compared_by_equality():
    found = [
        f"{place}:{line}: compare {name} by hmac.compare_digest"
        for file in MODULES
        for line, names in comparisons(ast.parse(file.read_text(encoding="utf-8")))
        for name in names & SECRET
        if ((place := str(file.relative_to(TREE))), name) not in NO_SECRET
    ]
    assert found == []


@pytest.mark.parametrize(
    "source", ["row.digest == given", "a.token != b", "x(nonce) == nonce", "state.encode() == y", 'c["nonce"] == d']
)
def test_the_look_sees_such_a_comparison(source):
    ((_, names),) = comparisons(ast.parse(source))
    assert names & SECRET


def test_secrets_are_compared_where_they_are():
    for place in ("gateway/identity/keys.py", "gateway/identity/jwt.py", "gateway/admin/login.py"):
        assert "hmac.compare_digest(" in (TREE / place).read_text(encoding="utf-8")
