"""Shapes of a draft's programs: pure data, no framework.

Every tensor lies as (1, C, 1, S): channels on axis 1, positions on axis 3. Heads split the
channels: (1, heads, head_dim, S). Shapes are fixed, since the Neural Engine takes no others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedError

Shape = tuple[int, ...]

MAX_COLUMNS = 64  # of a block, and of new context columns in one call
ALIGNMENT = 32  # fp16 columns fill 64-byte rows on the Neural Engine
CONTEXTS = (512, 1024, 2048, 4096)
FULL, SLIDING = "full", "sliding"


@dataclass(frozen=True)
class DraftShape:
    """What a draft is built from, as far as its program goes.

    Attributes:
        taps: how many target layers make up a context feature.
        sliding: per layer, whether it sees only a window of the context.
        window: rows a sliding layer sees, the query's own included.
        causal: per layer, whether block rows see only earlier block rows.
        eps: of every RMSNorm.
        bias: whether q, k, v and o have biases.
    """

    hidden: int
    taps: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    bias: bool
    sliding: tuple[bool, ...]
    causal: tuple[bool, ...]
    window: int | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UnsupportedError(f"{self.heads} heads cannot share {self.kv_heads} K/V heads")
        if len(set(zip(self.sliding, self.causal, strict=True))) > len(set(self.sliding)):
            raise UnsupportedError("layers of one kind of attention must agree on being causal")
        if self.head_dim % 2:
            raise UnsupportedError(f"head_dim {self.head_dim} is odd: RoPE pairs its halves")

    @property
    def layers(self) -> int:
        """How many layers."""
        return len(self.sliding)

    @property
    def groups(self) -> int:
        """Query heads per K/V head."""
        return self.heads // self.kv_heads

    @property
    def masks(self) -> tuple[str, ...]:
        """The kinds of attention that occur; each has a mask."""
        used = {self.mask(layer) for layer in range(self.layers)}
        return tuple(kind for kind in (FULL, SLIDING) if kind in used)

    def layer_of(self, kind: str) -> int:
        """The first layer of a kind of attention."""
        return next(layer for layer in range(self.layers) if self.mask(layer) == kind)

    def mask(self, layer: int) -> str:
        """A layer's kind of attention."""
        return SLIDING if self.sliding[layer] else FULL


@dataclass(frozen=True)
class Bucket:
    """The widths of one function.

    Attributes:
        block: positions of the block, 1 to 64.
        new: context columns that a call can take in, 0 to 64.
        context: cached context columns, a ring.
    """

    block: int
    new: int
    context: int

    def __post_init__(self) -> None:
        if not 1 <= self.block <= MAX_COLUMNS:
            raise UnsupportedError(f"a block of {self.block} positions: 1 to {MAX_COLUMNS} fit")
        if not 0 <= self.new <= MAX_COLUMNS:
            raise UnsupportedError(f"{self.new} new context columns: 0 to {MAX_COLUMNS} fit")
        if self.context not in CONTEXTS:
            raise UnsupportedError(
                f"a cached context of {self.context} columns: choose from {CONTEXTS}"
            )

    @property
    def keys(self) -> int:
        """Columns that attention sees: cached, new, and the block's."""
        return self.context + self.new + self.block

    @property
    def function(self) -> str:
        """The name of its function in a package."""
        return f"b{self.block}_n{self.new}_c{self.context}"


def aligned(columns: int) -> int:
    """The width to build for so many columns: the Neural Engine pads to 32 anyway."""
    return min(MAX_COLUMNS, -(-columns // ALIGNMENT) * ALIGNMENT)
