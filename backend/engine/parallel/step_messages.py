"""What rank 0 tells the others of a step: what it hands to its own runner, less what they know already."""

import msgspec

from backend.engine.core.host_tier import HostClear, HostLoad, HostSettle, HostStore
from backend.engine.core.sampling import SamplingParams
from backend.errors import BackendError


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that was not running. ``row``: see `Sequence.row`."""

    row: int
    id: int
    num_prompt: int
    params: SamplingParams
    ends: list[int]
    adapter: int = -1


class Launch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.launch`. gone: rows whose sequence is over. words: of each sequence of the batch, see `mirrors`. masked:
    `Masks` will follow."""

    gone: list[int]
    admitted: list[Admission]
    words: list[int]
    masked: bool


class Masks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What `Runner.launch` asks for once the model runs. bits: int32 words of `Allowed.bits`, row by row."""

    ids: list[int]
    bits: bytes


class Verify(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.verify`. guesses: of each sequence of the batch. allowed: int32 words of each one's `Drafted.allowed`,
    row by row; empty for None."""

    gone: list[int]
    words: list[int]
    guesses: list[list[int]]
    allowed: list[bytes]


class Prepare(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.prepare`."""


class Copy(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.copy`."""

    pairs: list[tuple[int, int]]


class Scrub(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.scrub`. gone: as in `Launch`, so that tokens are forgotten when their keys and values are zeroed."""

    gone: list[int]
    blocks: list[int]


class Residue(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Runner.residue`; answered by `Done`."""

    blocks: list[int]


class HostResidue(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`HostPages.residue`; answered by `Done`."""

    slots: list[int]


class HostForget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`HostPages.forget`."""


class PlaceAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`models.adapters`: put the adapter in that folder, which has that digest, into a slot; answered by `Done` or
    `Refused`. No folder: zero the slot; answered by `Done`."""

    slot: int
    folder: str = ""
    digest: str = ""


class ReadBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`BlockBytes.read` of this rank's part, as of now; `TakeRead` with the same number follows."""

    number: int
    layer: int
    blocks: list[int]


class TakeRead(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`PendingBlocks.take`; answered by `RankBlocks`."""

    number: int


class WriteRankBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`BlockBytes.write` of this rank's part."""

    layer: int
    blocks: list[int]
    keys: bytes
    values: bytes


class Sleep(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Sleeper.sleep`; answered by `Done` with the bytes given back, or by `Refused`."""


class Wake(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`Sleeper.wake`; answered by `Done` or `Refused`."""


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    number: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """``kind`` is the name of a class in `backend.errors`."""

    kind: str
    message: str


class RankBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This rank's part of the blocks that were read."""

    keys: bytes
    values: bytes


ToFollower = (
    Launch
    | Masks
    | Verify
    | Prepare
    | Copy
    | Scrub
    | Residue
    | PlaceAdapter
    | Sleep
    | Wake
    | ReadBlocks
    | TakeRead
    | WriteRankBlocks
    | HostStore
    | HostLoad
    | HostSettle
    | HostClear
    | HostResidue
    | HostForget
)
FromFollower = Done | Refused | RankBlocks


class RankLost(BackendError):
    """A rank of the engine has died or hangs."""
