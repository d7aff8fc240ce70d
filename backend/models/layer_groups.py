"""Which layers of a model share a block table, and where their keys and values are in a block.

A layer with a window keeps the blocks that the window reaches, a full one keeps all, so they cannot share a table. All
tables take their blocks from one pool: a block has room for `depth` layers, and a kind of layer that has more of them
has more tables (the hybrid KV cache manager of vLLM; Zhang et al. 2025, Jenga). So a block is the same number of bytes
for every table, and what counts, zeroes, copies or keeps blocks need not know whose they are.
"""

from dataclasses import dataclass

from backend.models.config import ModelConfig

MOST_TABLES = 8  # of a sequence: each is some words a step for every sequence that runs


def reached_from(window: int | None, position: int, block_size: int) -> int:
    """Return the first block that a query at `position`, or at any later position, attends to."""
    return 0 if window is None else max(0, position - window + 1) // block_size


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """
    Attributes:
        windows: of each table, the window of its layers; None: they attend to all. Those without come first.
        tables: of each layer, the table that it takes its blocks from.
        places: of each layer, which of a block's layers it is.
    """

    windows: tuple[int | None, ...]
    tables: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Layers that a block has room for."""
        return 1 + max(self.places)

    def kept_windows(self) -> list[int]:
        """For each layer, the tokens that it keeps; 0 for all."""
        return [self.windows[table] or 0 for table in self.tables]

    def blocks_of(self, tokens: int, step: int, block_size: int) -> int:
        """Blocks that a sequence of so many tokens holds at most, of which no step computes more than `step`."""
        return sum(self._held(window, tokens, step, block_size) for window in self.windows)

    def longest(self, blocks: int, step: int, block_size: int, most: int, count: int = 1) -> int:
        """Tokens, up to `most`, of the longest sequence of which so many blocks hold `count` at once."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_of_all(count, middle, step, block_size) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def at_once(self, blocks: int, tokens: int, step: int, block_size: int) -> int:
        """Sequences of so many tokens that so many blocks hold."""
        left = blocks - self.blocks_of(tokens, step, block_size)
        return 0 if left < 0 else 1 + left // self.blocks_of(tokens, 1, block_size)

    def blocks_of_all(self, count: int, tokens: int, step: int, block_size: int) -> int:
        """Blocks that `count` such sequences hold: one is in a step of `step` tokens while the others decode."""
        return self.blocks_of(tokens, step, block_size) + (count - 1) * self.blocks_of(tokens, 1, block_size)

    @staticmethod
    def _held(window: int | None, tokens: int, step: int, block_size: int) -> int:
        whole = -(-tokens // block_size)
        if window is None:
            return whole
        return min(whole, (window + step + block_size - 3) // block_size + 1)  # wherever in a block they begin


def one_table(layers: int) -> LayerGroups:
    """All layers keep all tokens."""
    return LayerGroups((None,), (0,) * layers, tuple(range(layers)))


def grouped(model: ModelConfig) -> LayerGroups:
    """Return the groups that need the least memory for a sequence of the whole context; among equals, the fewest."""
    windows = model.windows or (None,) * model.num_layers
    kinds = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    layers_of = {kind: [layer for layer, window in enumerate(windows) if window == kind] for kind in kinds}
    counts = [(kind, len(layers)) for kind, layers in layers_of.items()]
    least = (model.num_layers * model.max_position, 1, model.num_layers)
    for depth in range(1, model.num_layers + 1):
        tables = sum(-(-count // depth) for _, count in counts)
        tokens = sum(-(-count // depth) * min(kind or model.max_position, model.max_position) for kind, count in counts)
        if tables <= MOST_TABLES:
            least = min(least, (depth * tokens, tables, depth))
    cost, _, depth = least
    if cost >= model.num_layers * model.max_position:
        return one_table(model.num_layers)
    return _cut(layers_of, model.num_layers, depth)


def _cut(layers_of: dict[int | None, list[int]], layers: int, depth: int) -> LayerGroups:
    found: list[int | None] = []
    tables, places = [0] * layers, [0] * layers
    for kind, members in layers_of.items():
        for at, layer in enumerate(members):
            if at % depth == 0:
                found.append(kind)
            tables[layer], places[layer] = len(found) - 1, at % depth
    return LayerGroups(tuple(found), tuple(tables), tuple(places))
