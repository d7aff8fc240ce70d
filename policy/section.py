"""The parts that policy documents are made of: sections that refuse unknown keys, and types that several keys share."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, StringConstraints, Tag


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def checked_by(parse: Callable[[str], object]) -> AfterValidator:
    """A validator that keeps the text and accepts what `parse` accepts, which raises ValueError for anything else."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def list_or_word(value: Any) -> str:
    return "list" if isinstance(value, (list, tuple)) else "word"


NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def demand_of(word: Any) -> Any:
    """The type of the word ``required``, or a list of what is accepted."""
    return Annotated[
        Annotated[Literal["required"], Tag("word")] | Annotated[tuple[word, ...], Tag("list")],
        Discriminator(list_or_word),
    ]
