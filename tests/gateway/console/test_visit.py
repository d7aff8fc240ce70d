import pytest

from gateway.console.visit import marked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `domicile doctor`; see `a.b`", "run <code>domicile doctor</code>; see <code>a.b</code>"),
        ("nothing to mark", "nothing to mark"),
        ("a lone ` stays", "a lone ` stays"),
        ("<b>`<i>`", "&lt;b&gt;<code>&lt;i&gt;</code>"),
    ],
)
def test_what_stands_between_backticks_is_code_and_nothing_is_markup(text, shown):
    assert str(marked(text)) == shown
