"""What shall run (`Deployment`) and what does (`Replica`): frozen values that cross rooms.

A replica's life: starting -> ready -> draining -> stopped, or failed from any of them; from ready it may fall asleep,
and wake up again, any number of times. Once it has ended it is never used again: its successor has another id, and
with it another certificate, so that the old one identifies no backend any more.
"""

from collections.abc import Mapping
from enum import StrEnum
from secrets import token_hex
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from regions.fleet.cards import CPU, Cards
from regions.fleet.fleet import Role
from regions.identity.identity import NAME

MAX_REPLICAS = 256
SUFFIX_BYTES = 4
MAX_NAME = 31 - 1 - 2 * SUFFIX_BYTES
"""Characters of a deployment's name: a replica's is it, a hyphen and eight hexadecimal digits."""
MAX_FAILURE = 400

Kind = Literal["mixed", "disaggregated"]
Asked = Literal["asleep", "awake"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Place = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class Scale(BaseModel):
    """How many replicas, and by what they are judged too few. `idle_s`: without a call for so long, down to
    `min_replicas`, also where that is 0; those that go sleep for `asleep_s` before they end, ready to come back soon.
    `ttft_ms`: the time to the first token that 95 of 100 calls should stay
    under. `calls_each`: calls that a replica should have at one time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: int = Field(0, ge=0, le=MAX_REPLICAS)
    max_replicas: int = Field(1, ge=1, le=MAX_REPLICAS)
    idle_s: int = Field(300, ge=1, le=7 * 86400)
    ttft_ms: int = Field(2000, ge=1, le=600_000)
    calls_each: int = Field(8, ge=1, le=4096)
    asleep_s: int = Field(0, ge=0, le=7 * 86400)


class Deployment(Scale):
    """A tenant's wish: `model`, as calls name it, from `weights`, in one of `regions` (the preferred first).

    `gpu`: the cards of one replica (`fleet.cards`). `wait_s`: how long a call may wait for a replica.
    `micro_eur_per_hour`: of one replica. One that is draining starts nothing more. `failures`: starts that failed one
    after the other, none having succeeded since; `failure`: why the last of them did. `weights_sha256`: the digest that
    its replicas have to compute of their weights; None until the first of them has said one, which then holds.
    `kind` disaggregated: prompts are computed by `prefill` replicas of their own, which are there as long as any other
    is; `Scale` is of those that answer. `asked`: what a person wants now: that all of it sleeps until a call waits,
    whatever the least number is, or that one is awake, which `idle_s` later may sleep again. None: nothing, or it was
    done.
    """

    tenant: Place
    id: Annotated[str, Field(pattern=f"^{NAME.pattern}$", max_length=MAX_NAME)]
    model: str = Field(min_length=1, max_length=200)
    weights: str = Field(min_length=1, max_length=1000)
    regions: tuple[Place, ...] = Field(min_length=1, max_length=16)
    gpu: str = Field(CPU, max_length=32)
    wait_s: int = Field(120, ge=1, le=3600)
    micro_eur_per_hour: int = Field(0, ge=0, le=10**12)
    weights_sha256: Sha256 | None = None
    kind: Kind = "mixed"
    prefill: int = Field(0, ge=0, le=MAX_REPLICAS)
    draining: bool = False
    asked: Asked | None = None
    failures: int = Field(0, ge=0)
    failure: str | None = Field(None, max_length=MAX_FAILURE)

    @field_validator("gpu")
    @classmethod
    def _cards(cls, gpu: str) -> str:
        """In one spelling: ``1xh100`` is ``h100``."""
        return str(Cards.parse(gpu))

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        check_kind(self.kind, self.prefill)
        return self

    @property
    def answering(self) -> Role:
        """The role of the replicas that answer."""
        return "decode" if self.kind == "disaggregated" else "mixed"

    @property
    def most_replicas(self) -> int:
        """Those that answer and those for prompts."""
        return self.max_replicas + self.prefill

    @property
    def cards(self) -> Cards:
        """Number of cards of one replica."""
        return Cards.parse(self.gpu)

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id

    def potential(self, region: str) -> str:
        """What a policy knows a replica by that does not run yet; no real one has such a name."""
        return f"{self.id}.{region}"


def check_kind(kind: Kind, prefill: int) -> None:
    """Raises ValueError for numbers that do not go with the kind."""
    if (kind == "disaggregated") != (prefill > 0):
        raise ValueError(
            f"a deployment of kind {kind} has {prefill} replicas for prompts"
            "; give --kind disaggregated and --prefill of at least 1, or neither"
        )


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})
NEXT: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.STARTING: frozenset(
        {ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPED, ReplicaState.FAILED}
    ),
    ReplicaState.READY: frozenset(
        {ReplicaState.ASLEEP, ReplicaState.DRAINING, ReplicaState.STOPPED, ReplicaState.FAILED}
    ),
    ReplicaState.ASLEEP: frozenset(
        {ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPED, ReplicaState.FAILED}
    ),
    ReplicaState.DRAINING: frozenset({ReplicaState.STOPPED, ReplicaState.FAILED}),
    ReplicaState.STOPPED: frozenset(),
    ReplicaState.FAILED: frozenset(),
}
"""Where a replica may go from where it is."""


class Replica(BaseModel):
    """One replica: where its life is, and which node's launcher holds it. Times are seconds since 1970; up to
    `metered_until` its time is on the bill."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    deployment: str
    region: str
    state: ReplicaState
    holder: str
    gpu: str
    model: str
    micro_eur_per_hour: int
    started_at: float
    metered_until: float
    role: Role = "mixed"

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.deployment


def replica_name(deployment: str) -> str:
    """A new one, unlike any before."""
    return f"{deployment}-{token_hex(SUFFIX_BYTES)}"
