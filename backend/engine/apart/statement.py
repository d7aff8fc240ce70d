"""What two backends have to have in common for blocks of one to be blocks of the other. Plain data; no torch here."""

import msgspec


class CacheLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine keeps keys and values. key_bytes, value_bytes: of one block in one layer. dtype: of the cache.
    windows: of each layer, how many of the newest tokens it keeps; 0 for all."""

    layers: int
    block_size: int
    key_bytes: int
    value_bytes: int
    dtype: str
    windows: list[int] = []


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """computed_by: the fingerprint, which names the digest of the weights and everything that decides over bits of a
    result (`backend.answer.fingerprint`)."""

    computed_by: str
    layout: CacheLayout

    def differs_from(self, other: "Statement") -> str:
        """The first thing that differs, in words; "" if nothing does."""
        if self.computed_by != other.computed_by:
            return f"weights or computation: {self.computed_by} and {other.computed_by}"
        for name in CacheLayout.__struct_fields__:
            ours, theirs = getattr(self.layout, name), getattr(other.layout, name)
            if ours != theirs:
                return f"{name} of the KV cache: {ours} and {theirs}"
        return ""
