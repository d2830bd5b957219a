"""A draft divided into programs that the Neural Engine can hold: what goes in, what comes out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .shapes import Bucket, DraftShape, Shape

FEATURES, ATTENTION, MLP = "features", "attention", "mlp"


@dataclass(frozen=True)
class Unit:
    """A piece that is never divided: the projection of features, the attention of a layer, or some
    of the channels of a layer's MLP.

    Attributes:
        kind: features, attention or mlp.
        layer: its layer.
        channels: of the MLP's intermediate channels, which.
    """

    kind: str
    layer: int = 0
    channels: range = range(0)


@dataclass(frozen=True)
class Part:
    """Consecutive units that form one program.

    Attributes:
        units: what it computes.
        last: whether it ends with the final norm.
        enters_mlp: it begins in the middle of an MLP.
        leaves_mlp: it ends in the middle of an MLP.
    """

    units: tuple[Unit, ...]
    last: bool = False
    enters_mlp: bool = False
    leaves_mlp: bool = False

    @property
    def first(self) -> bool:
        """Whether it takes in features; later parts take the first one's context."""
        return self.units[0].kind == FEATURES

    @property
    def computes_block(self) -> bool:
        """Whether it does anything but project features."""
        return self.units[-1].kind != FEATURES

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose attention it holds."""
        return tuple(unit.layer for unit in self.units if unit.kind == ATTENTION)


def split(
    shape: DraftShape,
    features: bool = True,
    bytes_per_parameter: float = 1.0,
    limit: float = float("inf"),
) -> list[Part]:
    """As few programs as keep each one's weights within `limit` bytes, of like sizes.

    Args:
        shape: of the draft.
        features: whether context columns are taken in at all.
        bytes_per_parameter: of stored matrices.
        limit: bytes. A unit that cannot be divided may pass it.
    """
    units = _units(shape, features, limit / bytes_per_parameter)
    sizes = [parameters(shape, unit) * bytes_per_parameter for unit in units]
    count = len(_fill(sizes, limit))
    # The smallest cap that needs no more programs makes them alike.
    low, high = max(sizes), limit
    low, high = max(sizes), sum(sizes)
    while high - low > sum(sizes) / 1000:
        middle = (low + high) / 2
        low, high = (low, middle) if len(_fill(sizes, middle)) <= count else (middle, high)
    ends = _fill(sizes, high)
    return [_part(units, a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def projections(unit: Unit) -> dict[str, tuple[str, str]]:
    """A unit's matrices: which -> (its name in the program, its published name)."""
    if unit.kind == FEATURES:
        return {"fc": ("fc", "fc")}
    if unit.kind == ATTENTION:
        name, at = f"layer_{unit.layer}_attention", f"layers.{unit.layer}.self_attn"
        return {which: (f"{name}_{which}", f"{at}.{which}_proj") for which in "qkvo"}
    name, at = f"layer_{unit.layer}_mlp_{unit.channels.start}", f"layers.{unit.layer}.mlp"
    return {which: (f"{name}_{which}", f"{at}.{which}_proj") for which in ("gate", "up", "down")}


def parameters(shape: DraftShape, unit: Unit) -> int:
    """Parameters of a unit's matrices."""
    if unit.kind == FEATURES:
        return shape.taps * shape.hidden**2
    if unit.kind == ATTENTION:
        return 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    return 3 * shape.hidden * len(unit.channels)


def _units(shape: DraftShape, features: bool, most: float) -> list[Unit]:
    """`most`: parameters of an MLP's piece."""
    pieces = math.ceil(3 * shape.hidden * shape.intermediate / most) or 1
    ends = [shape.intermediate * index // pieces for index in range(pieces + 1)]
    units = [Unit(FEATURES)] if features else []
    for layer in range(shape.layers):
        units.append(Unit(ATTENTION, layer))
        units += [Unit(MLP, layer, range(a, b)) for a, b in itertools.pairwise(ends)]
    return units


def _fill(sizes: list[float], cap: float) -> list[int]:
    """Where each program ends, filling one after the other up to `cap`."""
    ends, used = [], 0.0
    for index, size in enumerate(sizes):
        if used and used + size > cap:
            ends.append(index)
            used = 0.0
        used += size
    return [*ends, len(sizes)]


def _part(units: list[Unit], start: int, stop: int) -> Part:
    def inside(index: int) -> bool:
        """Whether a cut before this unit is in the middle of an MLP."""
        unit = units[index]
        return unit.kind == MLP and unit.channels.start > 0

    last = stop == len(units)
    return Part(tuple(units[start:stop]), last, inside(start), not last and inside(stop))


def inputs(shape: DraftShape, bucket: Bucket, part: Part) -> dict[str, Shape]:
    """Names and shapes of a function's inputs, all fp16, in order.

    `hidden` is the embedded block times the residual scale, or what the part before gave; `sum`,
    the same with the pieces of an MLP added that the parts before computed. `cos_q` and `sin_q`
    hold RoPE's tables at the block's positions, `cos_k` and `sin_k` at those of the new columns
    and the block; the sine's first half is negated. A mask is added to the scores of all cached,
    new and block columns, in this order. `keys` and `values` are the rings of the part's layers.
    """
    found: dict[str, Shape] = {}
    state = (1, shape.hidden, 1, bucket.block)
    if part.computes_block:
        found["hidden"] = state
    if part.enters_mlp:
        found["sum"] = state
    if bucket.new and part.first:
        found["features"] = (1, shape.taps * shape.hidden, 1, bucket.new)
    if not part.layers:
        return found
    if bucket.new and not part.first:
        found["context"] = (1, shape.hidden, 1, bucket.new)
    for name, columns in (("q", bucket.block), ("k", bucket.new + bucket.block)):
        found[f"cos_{name}"] = found[f"sin_{name}"] = (1, 1, shape.head_dim, columns)
    used = {shape.mask(layer) for layer in part.layers}
    for kind in shape.masks:
        if kind in used:
            found[f"mask_{kind}"] = (1, 1, bucket.block, bucket.keys)
    cached = (1, len(part.layers) * shape.kv_heads, shape.head_dim, bucket.context)
    found["keys"] = found["values"] = cached
    return found


def outputs(shape: DraftShape, bucket: Bucket, part: Part) -> dict[str, Shape]:
    """Names and shapes of a function's outputs, all fp16, in order.

    `hidden_out` is the block's hidden states after the part (after the final norm, in the last
    one), `new_keys` and `new_values` the new context columns, which the host writes into the ring:
    columns of the block never leave the program. `context_out` goes to the later parts.
    """
    state = (1, shape.hidden, 1, bucket.block)
    found: dict[str, Shape] = {}
    if part.computes_block:
        found["hidden_out"] = state
    if part.leaves_mlp:
        found["sum_out"] = state
    if bucket.new and part.layers:
        fresh = (1, len(part.layers) * shape.kv_heads, shape.head_dim, bucket.new)
        found["new_keys"] = found["new_values"] = fresh
    if bucket.new and part.first and not part.last:
        found["context_out"] = (1, shape.hidden, 1, bucket.new)
    return found
