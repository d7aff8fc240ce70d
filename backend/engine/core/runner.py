"""What computes the engine's steps, as the engine sees it."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import Drafted
from backend.engine.core.token_masks import Allowed
from backend.models.layer_groups import LayerGroups

Masks = Callable[[], Allowed]
REBALANCED_PAIRS = 4096  # of tokens and experts of a layer, after which it is looked at again which have copies


class Launched(Protocol):
    """A step in flight."""

    def tokens(self) -> list[int | None]:
        """One for each of the batch that samples, in its order; None: its logits were not numbers. Waits for it."""
        ...

    def logprobs(self) -> list[TokenLogprobs | None]:
        """Those of the same tokens, where they were asked for. Waits for it."""
        ...

    def prompt_logprobs(self) -> list[tuple[Sequence, int, list[TokenLogprobs]]]:
        """What is known of prompts: from which place in `Sequence.prompt_logprobs` on, and what. Waits for it."""
        ...

    def activations(self) -> list[bytes | None]:
        """The largest that the same tokens were drawn from, where sequences commit to them. Waits for it."""
        ...


class Moment(Protocol):
    """A place in the order of what a device does."""


class PendingBlocks(Protocol):
    """Blocks on their way to the host."""

    @property
    def arrived(self) -> bool: ...

    def take(self) -> tuple[bytes, bytes]:
        """Keys and values, once. Waits for them; the buffer that they came through is zeroed."""
        ...


class PlacedBlocks(Protocol):
    """Blocks on their way into a slot of a window."""

    @property
    def arrived(self) -> bool: ...

    def take(self) -> int:
        """Their checksum, once. Waits for them."""
        ...


class Window(Protocol):
    """Memory that another backend of this host has mapped, or that of another one. handle: a
    `cache.window_handle.WindowHandle`."""

    @property
    def handle(self) -> Any: ...
    def part(self, slot: int, size: int) -> Tensor:
        """The first bytes of a slot, to write to. [size], uint8."""
        ...

    def copied(self, slot: int, size: int) -> Tensor:
        """The same in memory of this process alone."""
        ...

    def close(self) -> None:
        """Zero it where it is this process's own; let go of it."""
        ...


class BlockBytes(Protocol):
    """A cache as bytes, for blocks that travel between backends. layers: how many. block_bytes: of the keys and of the
    values of a block in one layer. dtype: of the cache, by its name. groups: which layer takes its blocks from which
    of a sequence's tables."""

    @property
    def layers(self) -> int: ...
    @property
    def block_bytes(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def groups(self) -> LayerGroups: ...

    def now(self) -> Moment:
        """Behind the steps that are launched."""
        ...

    def read(self, layer: int, blocks: list[int], moment: Moment) -> PendingBlocks:
        """Begin to copy these blocks of a layer as they are at that moment. None of them may be written before they
        have arrived."""
        ...

    def write(self, layer: int, blocks: list[int], keys: bytes, values: bytes) -> None:
        """Behind the steps in flight, none of which may use these blocks."""
        ...

    def make_window(self) -> Window:
        """That blocks can be read into. Raises BackendError where there can be none."""
        ...

    def open_window(self, handle: Any) -> Window:
        """Another process's, that blocks can be written from. Raises BackendError."""
        ...

    def read_into(self, layer: int, blocks: list[int], moment: Moment, window: Window, slot: int) -> PlacedBlocks:
        """As `read`, into that slot of a window of this process."""
        ...

    def write_from(self, layer: int, blocks: list[int], window: Window, slot: int, checksum: int) -> bool:
        """As `write`, from that slot of another process's window, which may be reused at once. False if what is there
        has another checksum; then nothing is written."""
        ...

    def clear(self, window: Window, slot: int, size: int) -> None:
        """Zero so many bytes of the slot, before anything is read into it again."""
        ...

    def left_in(self, window: Window, slot: int, size: int) -> int:
        """Of so many bytes of the slot, those that are not zero. Waits for what was read into it, or cleared."""
        ...


class Runner(Protocol):
    """ahead: steps that may be in flight when the next one is launched. plain_only: it draws from logits as they
    are, and reports nothing of them. windows: of each of a sequence's block tables (`LayerGroups.windows`)."""

    ahead: int
    plain_only: bool

    @property
    def windows(self) -> tuple[int | None, ...]: ...

    @property
    def pages(self) -> BlockBytes | None:
        """The cache as it is now; None: its blocks cannot travel."""
        ...

    @property
    def missed(self) -> int:
        """Pieces of work of `prepare` that steps lacked: they ran without, slower."""
        ...

    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Launched:
        """``masks`` is called once the model runs, or has run, and before anything is drawn: the tokens that sequences
        with a grammar or a restriction may draw, their end where `min_tokens` allows it; it may wait for earlier steps.
        The bits last until the next call."""
        ...

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        """What is drawn behind each sequence's last token and behind each of its guesses, or the first draws of these.
        Waits for it; no other step is in flight meanwhile."""
        ...

    def checked_activations(self) -> list[list[bytes]]:
        """Of the last `verify`: the largest activations behind each draw, for each sequence; [] of one that does not
        commit to them."""
        ...

    def prepare(self) -> bool:
        """Do one piece of work, of at most some tenths of a second, that makes later steps faster, first what a step
        `missed`; False if there is none. Between two steps."""
        ...

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy KV blocks, (from, to), behind the steps in flight."""
        ...

    def scrub(self, blocks: list[int]) -> None:
        """Zero KV blocks, behind the steps in flight."""
        ...

    def residue(self, blocks: list[int]) -> int:
        """Bytes of these blocks that are not zero, read back from the cache. Waits for it."""
        ...
