"""`models`: which models may be asked for, whose signature their weights must have, and what answers commit to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from policy.conditions.condition import Asked, Condition
from policy.conditions.sets import first_of, in_words, subset
from policy.facts import BackendFacts, RequestFacts
from policy.reason import Reason
from policy.section import NonEmpty, Section, list_or_word

Names = Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
KeyFingerprint = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""SHA-256 of a public key (SubjectPublicKeyInfo, DER)."""
_SOME_KEY = "sha256:" + "0" * 64


class ModelsRule(Section):
    """`signed_by`: one of these keys, or a certificate under one, signed the weights (OpenSSF Model Signing).
    `commitments`: each answer commits to the activations that its tokens were drawn from."""

    names: Names | None = None
    signed_by: Annotated[tuple[KeyFingerprint, ...], Field(min_length=1)] | None = None
    commitments: Literal["activations"] | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.names is None and self.signed_by is None and self.commitments is None:
            raise ValueError("this asks for nothing; set names, signed_by or commitments, or remove the key")
        return self


@dataclass(frozen=True, slots=True)
class ModelsBound:
    """None: no level names any."""

    names: frozenset[str] | None
    signed_by: frozenset[str] | None
    commitments: Literal["activations"] | None = None


NOTHING_ASKED = ModelsBound(None, None)


def asks_for_commitments(asked: Asked) -> bool:
    """Whether answers have to commit to their activations."""
    bound: ModelsBound | None = asked[Models.name]
    return bound is not None and bound.commitments is not None


class Models(Condition[tuple[str, ...] | ModelsRule, ModelsBound]):
    name: ClassVar[str] = "models"
    form: ClassVar[Any] = Annotated[
        Annotated[Names, Tag("list")] | Annotated[ModelsRule, Tag("word")], Discriminator(list_or_word)
    ]
    says: ClassVar[str] = (
        "a list, or `names`: the model that is asked for must be on it; `signed_by`: one of these keys must have "
        "signed the weights that the backend computed digests of; `commitments: activations`: each answer commits to "
        "its model's activations, which only Domicile's engine does"
    )
    facts: ClassVar[tuple[str, ...]] = ("model",)
    given: ClassVar[Mapping[str, Any]] = {"model": NonEmpty | None}
    given_of_backend: ClassVar[Mapping[str, Any]] = {"signed_by": tuple[KeyFingerprint, ...] | None}

    def tightened(self, above: ModelsBound | None, wanted: tuple[str, ...] | ModelsRule, whose: str) -> ModelsBound:
        rule = wanted if isinstance(wanted, ModelsRule) else ModelsRule(names=wanted)
        above = above or NOTHING_ASKED
        return ModelsBound(
            above.names if rule.names is None else subset(self.name, above.names, rule.names, whose),
            above.signed_by
            if rule.signed_by is None
            else subset("models.signed_by", above.signed_by, rule.signed_by, whose),
            rule.commitments or above.commitments,
        )

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        bound: ModelsBound | None = asked[self.name]
        if bound is not None and bound.names is not None and facts.model not in bound.names:
            yield Reason(self.name, None, f"policy does not list model {facts.model}")

    def refusals_of_backend(self, bound: ModelsBound, backend: BackendFacts, generates: bool) -> Iterator[Reason]:
        if bound.commitments is not None and generates and backend.kind != "domicile":
            because = "does not commit to its activations, policy asks for it"
            yield Reason("models.commitments", backend.backend_id, because, "AI Act 12(1), 15(5)")
        if bound.signed_by is None:
            return
        if backend.weights_source != "computed":
            because = "does not compute the digest of its weights, policy asks for signed ones"
        elif bound.signed_by.isdisjoint(backend.signed_by):
            why = backend.signature_fault or ("another key signed them" if backend.signed_by else "no signature")
            because = f"its weights {(backend.weights or 'unknown')[:16]} are not signed by a key of the policy: {why}"
        else:
            return
        yield Reason("models.signed_by", backend.backend_id, because, "AI Act 15(5)")

    def described(self, bound: ModelsBound) -> Mapping[str, str]:
        said = {self.name: bound.names, "models.signed_by": bound.signed_by}
        commitments = {} if bound.commitments is None else {"models.commitments": bound.commitments}
        return {rule: in_words(words) for rule, words in said.items() if words is not None} | commitments

    def accepted_facts(self, bound: ModelsBound | None) -> Mapping[str, Any]:
        return {"model": first_of(None if bound is None else bound.names, "model-under-test")}

    def accepted_facts_of_backend(self, bound: ModelsBound | None) -> Mapping[str, Any]:
        return {"signed_by": (first_of(None if bound is None else bound.signed_by, _SOME_KEY),)}
