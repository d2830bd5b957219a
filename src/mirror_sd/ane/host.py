"""The host's side of a draft's programs: the ring of context columns, masks, and RoPE's tables.

Keys carry RoPE at absolute positions, so a column means the same in any slot, and the context can
be a ring: a new column overwrites the oldest, nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..devices.device import Executor, Span
from .calibration import Calibration
from .parts import Part, inputs
from .shapes import SLIDING, Bucket, DraftShape

F16 = np.float16
HIDDEN_SCORE = -1e4  # added to scores of what is not to be seen: fp16 holds it, softmax makes it 0

Tables = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Ring:
    """Which committed position each slot of the context holds."""

    def __init__(self, width: int):
        self.width, self.length = width, 0
        self.positions = np.full(width, -1)

    def slots(self, count: int) -> np.ndarray:
        """Where the next `count` columns go; they count as written."""
        positions = np.arange(self.length, self.length + count)
        slots = positions % self.width
        self.positions[slots] = positions
        self.length += count
        return slots

    def skip(self, count: int) -> None:
        """The next `count` columns come to no slot. The slots that they would have had hold what is
        too old by then.
        """
        self.length += count

    def trim_to(self, length: int) -> None:
        """Forget the columns from position `length` on. Those that they replaced stay lost."""
        self.positions[self.positions >= length] = -1
        self.length = length


class HostedDraft:
    """A draft whose programs run elsewhere, called part by part.

    Programs without new columns take the context as keys and values, which are written into the
    rings here; others take features.

    Args:
        shape: of the draft.
        bucket: widths of the functions that are called.
        parts: the programs, in order.
        calibration: how tensors are held.
        tables: positions [n] -> cosines and sines of RoPE, [n, head_dim / 2].
        device: runs the parts.
    """

    def __init__(
        self,
        shape: DraftShape,
        bucket: Bucket,
        parts: Sequence[Part],
        calibration: Calibration,
        tables: Tables,
        device: Executor,
    ):
        self.shape, self.bucket, self.parts, self.calibration = shape, bucket, parts, calibration
        self.ring = Ring(bucket.context)
        self._order = calibration.order(shape.taps * shape.hidden)
        self._tables, self._device = tables, device
        wide = (1, shape.kv_heads, shape.head_dim, bucket.context)
        self._rings = [
            {
                kind: device.allocate((1, len(part.layers) * wide[1], *wide[2:]))
                for kind in ("keys", "values")
            }
            for part in parts
        ]

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.ring.length

    def trim_to(self, length: int) -> None:
        """Forget the positions behind the first `length`."""
        self.ring.trim_to(min(length, self.ring.length))

    def busy(self) -> list[Span]:
        """When the device computed since this was asked last."""
        return self._device.busy()

    def skip(self, positions: int) -> None:
        """Positions come next that are too old to be kept."""
        self.ring.skip(positions)

    def absorb(self, rows: np.ndarray) -> np.ndarray:
        """Take all but the last call's worth of context rows into the rings; the rest is returned.

        Args:
            rows: [n, taps * hidden] features, or [n, 2 * layers * kv_heads * head_dim] keys of all
                layers and then their values, by heads.
        """
        new = self.bucket.new
        if not new:
            self._write(rows)
            return rows[:0]
        empty = np.zeros((1, self.shape.hidden), np.float32)
        while len(rows) > new:
            self(rows[:new], empty)
            rows = rows[new:]
        return rows

    def __call__(
        self,
        rows: np.ndarray,
        block: np.ndarray,
        positions: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Commit new columns and draft a block.

        Args:
            rows: of committed tokens, as `absorb` leaves them: n at most the bucket's `new`.
            block: [b, hidden] embedded, b at most the bucket's `block`.
            positions: [b] of the block's rows; None counts on from the context.
            seen: [b, b] which rows of the block each row may see, for branches; None: all, in
                causal layers those up to itself.

        Returns:
            Hidden states [b, hidden] after the final norm, in fp32.
        """
        start, size = self.ring.length + len(rows), len(block)
        positions = np.arange(start, start + size) if positions is None else positions
        arrays = self._shared(rows, block, positions, seen)
        slots = self.ring.slots(len(rows))
        for index, part in enumerate(self.parts):
            names = inputs(self.shape, self.bucket, part)
            found = self._device(index, {n: (arrays | self._rings[index])[n] for n in names})
            for kind in ("keys", "values"):
                if f"new_{kind}" in found:
                    fresh = found[f"new_{kind}"][..., : len(slots)]
                    self._rings[index][kind][..., slots] = fresh
            for name in ("hidden", "sum", "context"):
                if f"{name}_out" in found:
                    arrays[name] = np.asarray(found[f"{name}_out"], F16)
        return arrays["hidden"][0, :, 0, :size].T.astype(np.float32)

    def _write(self, rows: np.ndarray) -> None:
        """Keys and values of all layers into the rings, the latest as far as they fit."""
        shape, width = self.shape, self.ring.width
        self.ring.skip(max(0, len(rows) - width))
        rows = rows[-width:]
        slots = self.ring.slots(len(rows))
        by_layer = rows.reshape(len(rows), 2, shape.layers, shape.kv_heads, shape.head_dim)
        for part, rings in zip(self.parts, self._rings, strict=True):
            for index, kind in enumerate(("keys", "values")):
                own = by_layer[:, index, list(part.layers)]  # [n, layers, heads, d]
                rings[kind][0][..., slots] = own.transpose(1, 2, 3, 0).reshape(
                    rings[kind].shape[1:3] + slots.shape
                )

    def _shared(
        self,
        features: np.ndarray,
        block: np.ndarray,
        positions: np.ndarray,
        seen: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        bucket, start = self.bucket, self.ring.length
        arrays = {"hidden": _columns(block * self.calibration.residual, bucket.block)}
        if bucket.new:
            scaled = features[:, self._order] * self.calibration.features
            arrays["features"] = _columns(scaled, bucket.new)
        fresh = np.arange(start, start + len(features))
        own = _padded(positions, bucket.block)
        keys = np.concatenate([_padded(fresh, bucket.new), own])
        for name, places in (("q", own), ("k", keys)):
            cos, sin = self._tables(places)
            arrays[f"cos_{name}"] = _table(cos, cos)
            arrays[f"sin_{name}"] = _table(-sin, sin)
        for kind in self.shape.masks:
            arrays[f"mask_{kind}"] = self._mask(kind, positions, fresh, seen)
        return arrays

    def _mask(
        self, kind: str, positions: np.ndarray, fresh: np.ndarray, seen: np.ndarray | None
    ) -> np.ndarray:
        """[1, 1, block, keys], 0 for what is seen."""
        bucket, rows = self.bucket, len(positions)
        oldest = self.ring.length + len(fresh) - bucket.context
        held = np.concatenate([self.ring.positions, _filled(fresh, bucket.new)])
        visible = np.broadcast_to((held >= 0) & (held >= oldest), (rows, len(held)))
        if kind == SLIDING:
            assert self.shape.window is not None
            visible = visible & (positions[:, None] - held < self.shape.window)
        own = np.ones((rows, rows), bool) if seen is None else seen
        if self.shape.causal[self.shape.layer_of(kind)]:
            own = np.tril(own)
        mask = np.full((1, 1, bucket.block, bucket.keys), HIDDEN_SCORE, F16)
        mask[0, 0, :rows, : visible.shape[1]][visible] = 0
        mask[0, 0, :rows, visible.shape[1] : visible.shape[1] + rows][own] = 0
        return mask


def _columns(rows: np.ndarray, width: int) -> np.ndarray:
    """[n, C] to [1, C, 1, width]."""
    found = np.zeros((1, rows.shape[1], 1, width), F16)
    found[0, :, 0, : len(rows)] = rows.T
    return found


def _padded(positions: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([positions, np.zeros(width - len(positions), positions.dtype)])


def _filled(positions: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([positions, np.full(width - len(positions), -1, positions.dtype)])


def _table(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Two halves [n, d / 2] as [1, 1, d, n]."""
    return np.concatenate([first, second], axis=1).T[None, None].astype(F16)
