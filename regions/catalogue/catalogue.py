"""Where backends run and who controls what runs there: dated facts from `catalogue.yaml` or an installation's own file.

The country table (EU, EEA, adequacy) is `policy.document.countries`, which see for why. A row that is not valid on the
day of the question is as unknown as one that is not there: its facts are left out, and policy denies on what it does
not know.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from policy.document.countries import builtin_countries
from policy.document.marked_yaml import MarkedYaml, parse_yaml
from policy.errors import PolicyDocumentError, invalid_value
from policy.facts import BackendFacts, CountrySets, Kind, Subprocessor, Tenancy
from regions.catalogue.rows import UNREAD, Certification, Claim, Operator, Region, Register, Row, Text
from regions.errors import CatalogueError

_EMPTY_BLOCK = BeforeValidator(lambda rows: () if rows is None else rows)
"""YAML has a list without items as null where it is written as a block."""


class _Document(BaseModel):
    """`extends`: rows of a catalogue that comes with the package hold too, but for ids that are here: ``places``, the
    real operators and regions alone, or ``domicile``, those and the invented ones of the demonstration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Text
    extends: Literal["domicile", "places"] | None = None
    operators: Annotated[tuple[Operator, ...], _EMPTY_BLOCK]
    regions: Annotated[tuple[Region, ...], _EMPTY_BLOCK]
    subprocessor_registers: tuple[Register, ...] = ()
    certifications: tuple[Certification, ...] = ()
    claims: tuple[Claim, ...] = ()


AnyRow = TypeVar("AnyRow", bound=Row)
RowKind = TypeVar("RowKind", Operator, Region, Register)


class Catalogue:
    """One version of the facts, immutable. Rows of one id may follow each other in time, not overlap."""

    def __init__(
        self,
        version: str,
        operators: Sequence[Operator],
        regions: Sequence[Region],
        registers: Sequence[Register] = (),
        certifications: Sequence[Certification] = (),
        claims: Sequence[Claim] = (),
    ) -> None:
        """Raises CatalogueError if rows of one id overlap or one names an operator or region that is not there."""
        self.version = version
        self.operators = tuple(operators)
        self.regions = tuple(regions)
        self.registers = tuple(registers)
        self.certifications = tuple(certifications)
        self.claims = tuple(claims)
        _refuse_overlaps("operator", self.operators)
        _refuse_overlaps("region", self.regions)
        _refuse_overlaps("sub-processor register", self.registers)
        known = {operator.id for operator in self.operators}
        for register in self.registers:
            if register.id not in known:
                raise CatalogueError(
                    f"the sub-processor register of {register.id} belongs to no operator"
                    "; name an operator of the catalogue, or add it"
                )
        for certification in (*self.certifications, *self.claims):
            if certification.of not in known | {region.id for region in self.regions}:
                raise CatalogueError(
                    f"certification {certification.id} is of {certification.of}, which is not there"
                    "; name an operator or a region of the catalogue"
                )
        for region in self.regions:
            if region.operator not in known:
                raise CatalogueError(
                    f"region {region.id} names operator {region.operator}, which is not in the catalogue"
                    "; add the operator, or correct its id"
                )

    @classmethod
    def parse(cls, text: str) -> "Catalogue":
        """From YAML. Raises CatalogueError with every problem and its line."""
        document = _read(text)
        if document.extends is None:
            return cls(
                document.version,
                document.operators,
                document.regions,
                document.subprocessor_registers,
                document.certifications,
                document.claims,
            )
        base = cls.load() if document.extends == "domicile" else cls.places()
        return cls(
            f"{document.version} on {base.version}",
            _above(document.operators, base.operators),
            _above(document.regions, base.regions),
            _above(document.subprocessor_registers, base.registers),
            _above(document.certifications, base.certifications),
            _above(document.claims, base.claims),
        )

    @staticmethod
    def own_version(text: str) -> str:
        """What a file calls its own rows. Raises CatalogueError."""
        return _read(text).version

    @classmethod
    def load(cls, path: Path | None = None) -> "Catalogue":
        """The file at `path`, or the one that comes with the package. Raises CatalogueError."""
        source = files("regions.catalogue").joinpath("catalogue.yaml") if path is None else path
        return cls._from_file(source)

    @classmethod
    def places(cls) -> "Catalogue":
        """Real operators and regions, as far as they could be read: the package's, without invented ones."""
        return cls._from_file(files("regions.catalogue").joinpath("places.yaml"))

    @classmethod
    def _from_file(cls, source: Traversable) -> "Catalogue":
        try:
            return cls.parse(source.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogueError(
                f"the catalogue cannot be read: {error}; name a readable file of UTF-8 text"
            ) from error

    def region(self, region: str, day: date) -> Region:
        """Raises CatalogueError if there is none of that id on `day`."""
        return self._row("region", self.regions, region, day)

    def operator(self, operator: str, day: date) -> Operator:
        """Raises CatalogueError if there is none of that id on `day`."""
        return self._row("operator", self.operators, operator, day)

    def backend_facts(
        self,
        *,
        backend_id: str,
        tenant: str,
        region: str,
        models: Iterable[str],
        day: date,
        kind: Kind | None = None,
        single_tenant: Tenancy | None = None,
        watermarks: bool = False,
    ) -> BackendFacts:
        """All that a decision asks about a backend. What is not known on `day` is left out, never guessed."""
        place = _on(self.regions, region, day)
        operator = _on(self.operators, place.operator, day) if place else None
        subprocessors, register = self._subprocessors(operator, day)
        return BackendFacts(
            backend_id=backend_id,
            tenant=tenant,
            region=region,
            models=tuple(models),
            compute_country=place.compute_country if place else None,
            storage_country=place.storage_country if place else None,
            operator=operator.entity if operator else None,
            operator_hq=operator.head_office if operator else None,
            ultimate_parent=operator.ultimate_parent if operator else None,
            parent_country=operator.parent_country if operator else None,
            subprocessors=subprocessors,
            subprocessors_version=register,
            attested_transfer=operator.attested_transfer if operator else (),
            kind=kind,
            single_tenant=single_tenant,
            watermarks=watermarks,
            certifications=self._certified({region, operator.id} if operator else {region}, day),
        )

    def _subprocessors(self, operator: Operator | None, day: date) -> tuple[tuple[Subprocessor, ...], str | None]:
        """Those of the operator's own row and of its register on `day`, and that register's version.

        An operator that keeps a register, but none for that day, counts as having an unknown sub-processor, which
        denies. A register that is in force says what the operator's own row left unread.
        """
        if operator is None:
            return (), None
        if not any(register.id == operator.id for register in self.registers):
            return operator.subprocessors, None
        register = _on(self.registers, operator.id, day)
        if register is None:
            return (*operator.subprocessors, Subprocessor(name=f"unknown: no register for {day}")), None
        own = tuple(one for one in operator.subprocessors if one != UNREAD)
        return (*own, *register.subprocessors), register.version

    def _certified(self, holders: set[str], day: date) -> tuple[str, ...]:
        held = {one.scheme for one in self.certifications if one.of in holders and one.valid_on(day)}
        return tuple(sorted(held))

    def claimed(self, holders: set[str], day: date) -> tuple[str, ...]:
        """Schemes that `holders`, ids of an operator or a region, are said to hold. They count for no policy."""
        return tuple(sorted({one.scheme for one in self.claims if one.of in holders and one.valid_on(day)}))

    def country_sets(self) -> CountrySets:
        """The table that the policies of this installation are compiled against."""
        return builtin_countries()

    def _row(self, what: str, rows: Sequence[RowKind], row_id: str, day: date) -> RowKind:
        row = _on(rows, row_id, day)
        if row is None:
            known = ", ".join(sorted({r.id for r in rows if r.valid_on(day)}))
            raise CatalogueError(f"there is no {what} {row_id!r} on {day}; there are {known or 'none'}")
        return row


def _above(own: Sequence[AnyRow], base: Sequence[AnyRow]) -> list[AnyRow]:
    """Rows of `own`, and those of `base` with other ids."""
    taken = {row.id for row in own}
    return [*own, *(row for row in base if row.id not in taken)]


def _on(rows: Sequence[RowKind], row_id: str, day: date) -> RowKind | None:
    return next((row for row in rows if row.id == row_id and row.valid_on(day)), None)


def _refuse_overlaps(what: str, rows: Sequence[Row]) -> None:
    ordered = sorted(rows, key=lambda row: (row.id, row.valid_from))
    for row in ordered:
        if row.valid_to is not None and row.valid_to < row.valid_from:
            raise CatalogueError(
                f"{what} {row.id} ends on {row.valid_to}, before it begins; correct valid_from or valid_to"
            )
    for earlier, later in pairwise(ordered):
        if earlier.id == later.id and (earlier.valid_to is None or later.valid_from <= earlier.valid_to):
            raise CatalogueError(
                f"{what} {later.id} is described twice on {later.valid_from}"
                "; end the earlier entry with valid_to before the later one begins"
            )


@lru_cache(maxsize=4)
def _read(text: str) -> _Document:
    """The text read and checked, once a process: parts of one gateway ask for the same file one after the other."""
    try:
        marked = parse_yaml(text)
        return _Document.model_validate(marked.value)
    except PolicyDocumentError as error:
        raise CatalogueError(str(error)) from error
    except ValidationError as error:
        raise CatalogueError(_problems(error, marked)) from None


def _problems(error: ValidationError, marked: MarkedYaml) -> str:
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(map(str, item["loc"]))
        lines.append((marked.line(item["loc"]), f"{where}: {invalid_value(item)}"))
    return "\n".join(f"line {line}: {message}" for line, message in sorted(lines))
