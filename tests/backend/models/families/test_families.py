from pathlib import Path

import pytest

from backend.errors import UnsupportedModel
from backend.models import families
from backend.models.families.__main__ import BEGIN, END, table

MODELS_PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_model_table_in_the_docs_is_the_registrys() -> None:
    page = MODELS_PAGE.read_text(encoding="utf-8")
    assert page[page.index(BEGIN) : page.index(END) + len(END)] == table()


def test_every_family_is_found_by_the_names_it_says() -> None:
    for family in families.FAMILIES:
        assert families.of_architecture(family.architecture) is family
        if family.gguf:
            assert families.of_gguf(family.gguf) is family


@pytest.mark.parametrize("name", [None, "", "llamaforcausallm", "GemmaForCausalLM"])
def test_an_unknown_architecture_is_refused_with_the_list_of_those_served(name: str | None) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        families.of_architecture(name)
    assert all(family.architecture in str(refused.value) for family in families.FAMILIES)


def test_a_gguf_architecture_that_is_not_read_is_no_match_for_families_without_one() -> None:
    with pytest.raises(UnsupportedModel, match="None is not one of llama, qwen2, qwen3"):
        families.of_gguf(None)
