"""Which part of a model's matrices one rank of a tensor-parallel group holds (Shoeybi et al. 2019, Megatron-LM).

Pure arithmetic, without torch: the planner counts with it, too.
"""

from dataclasses import dataclass

from backend.errors import UnsupportedModel

Stretch = tuple[int, int]  # from the first, to before the second
TOKENS = 8  # of the vocabulary, of which each rank's part is a multiple
SAME = 8  # ranks, up to which any power of two gives the same tokens where sums are ordered


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank of a group of `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size}; give one from 0 to {self.size - 1}")

    @property
    def alone(self) -> bool:
        return self.size == 1

    def stretch(self, total: int) -> Stretch:
        """This rank's part of `total` things, which the group's size divides."""
        each = total // self.size
        return self.rank * each, (self.rank + 1) * each

    def tokens(self, vocabulary: int) -> Stretch:
        """This rank's part of a vocabulary, which need not divide: the last ranks may have fewer, or none."""
        each = self.most_tokens(vocabulary)
        return min(self.rank * each, vocabulary), min((self.rank + 1) * each, vocabulary)

    def most_tokens(self, vocabulary: int) -> int:
        """Tokens in the largest part that `tokens` gives a rank: of up to `SAME` ranks, as many whole tiles for
        each."""
        if self.alone:
            return vocabulary
        if SAME % self.size == 0:
            return vocabulary_tile(vocabulary) * (SAME // self.size)
        return -(-vocabulary // (self.size * TOKENS)) * TOKENS


def vocabulary_tile(vocabulary: int) -> int:
    """Tokens of the largest part of `SAME` ranks."""
    return -(-vocabulary // (SAME * TOKENS)) * TOKENS


ALONE = Shard()


@dataclass(frozen=True, slots=True)
class Stage:
    """One of `count` groups of consecutive layers (pipeline parallelism; Huang et al. 2019, GPipe)."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"stage {self.index} is not one of {self.count}; give one from 0 to {self.count - 1}")

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, total: int) -> Stretch:
        """As equally many as can be; the last stage has the head as well, so that the first ones get what is left
        over."""
        bounds = [-(-total * index // self.count) for index in (self.index, self.index + 1)]
        return bounds[0], bounds[1]


WHOLE = Stage()


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a checkpoint's matrix that a rank holds.

    Attributes:
        whole: shape of the matrix, or of the vector, in the checkpoint.
        rows: stretches of its rows that the rank has, one below another.
        columns: stretch of its columns; None: all.
    """

    whole: tuple[int, ...]
    rows: tuple[Stretch, ...]
    columns: Stretch | None = None

    @property
    def height(self) -> int:
        return sum(end - begin for begin, end in self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        if len(self.whole) == 1:
            return (self.height,)
        begin, end = self.columns or (0, self.whole[1])
        return self.height, end - begin

    def transposed(self) -> "Share":
        """The same part of the transposed matrix. Raises UnsupportedModel if its rows are several stretches."""
        if len(self.rows) != 1:
            raise UnsupportedModel(
                "matrices that a checkpoint stores joined and transposed are not divided among ranks"
            )
        return Share(self.whole[::-1], (self.columns or (0, self.whole[1]),), self.rows[0])

    def rows_of(self, whole: tuple[int, ...]) -> "Share":
        """The same rows of a tensor with as many, and all of its columns."""
        return Share(whole, self.rows)

    def in_groups(self, whole: tuple[int, ...], rows: int = 1, columns: int = 1) -> "Share":
        """The same part of a tensor, `whole` large, of which a row stands for `rows` of this one's and a column for
        `columns`. Raises UnsupportedModel where a part begins or ends within a group."""
        stretches = tuple(_in_groups(stretch, rows, self.whole[0]) for stretch in self.rows)
        if len(whole) == 1:
            return Share(whole, stretches)
        part = None if self.columns is None else _in_groups(self.columns, columns, self.whole[1])
        return Share(whole, stretches, part)


def _in_groups(stretch: Stretch, group: int, total: int) -> Stretch:
    begin, end = stretch
    if begin % group or (end % group and end != total):
        raise UnsupportedModel(
            f"a rank's part of a matrix is {begin} to {end} of {total}, which does not divide into its groups of "
            f"{group}; lower --tensor-parallel-size, or choose --quantization none"
        )
    return begin // group, -(-end // group)


def of_rows(whole: tuple[int, ...], *rows: Stretch) -> Share:
    return Share(whole, rows)


def of_columns(whole: tuple[int, int], columns: Stretch) -> Share:
    return Share(whole, ((0, whole[0]),), columns)
