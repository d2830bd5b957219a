"""The draft's context: keys and values of committed tokens, for one draft layer.

Only context rows are kept; the rows of a block are dropped after each pass (DFlash, section on
inference). Keys carry RoPE at absolute positions, so rows can be dropped without moving the rest.
"""

from __future__ import annotations

import mlx.core as mx

STEP = 256


class ContextCache:
    """Keys and values of one layer, in one growing buffer.

    Args:
        window: how many of the latest rows are visible; None means all.
        sinks: how many of the first rows stay visible besides the window.
    """

    def __init__(self, window: int | None = None, sinks: int = 0):
        self.window = window
        self.sinks = sinks if window is not None else 0
        self.length = 0  # rows ever appended, less those trimmed: the next row's position
        self._dropped = 0  # rows between the sinks and the buffer's first recent row
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add context rows; `keys` and `values` are [1, heads, rows, head_dim]."""
        self._write(keys, values)
        self.length += keys.shape[2]
        self._compact()

    def skip(self, rows: int) -> None:
        """Count rows that no later block can see, so that they need not be computed."""
        assert self.window is not None
        assert self.sinks == 0, "sink rows stay visible: they cannot be skipped"
        self.length += rows
        self._dropped = self.length
        self._keys = self._values = None

    def with_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The visible context followed by a block's rows, which are not kept."""
        self._write(keys, values)
        return self._visible(self._keys, keys.shape[2]), self._visible(self._values, keys.shape[2])

    def trim_to(self, length: int) -> None:
        """Forget everything behind the first `length` rows. Rows that the window has dropped do
        not come back: the context is shorter then, and only acceptance can suffer.
        """
        assert 0 <= length <= self.length
        self.length = length
        self._dropped = max(0, min(self._dropped, length - self.sinks))

    @property
    def visible(self) -> int:
        """How many context rows a block sees."""
        if self.window is None:
            return self.length
        slots = self._slots()
        sinks = min(self.sinks, slots)
        return sinks + min(self.window, slots - sinks)

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers, to be evaluated."""
        return [] if self._keys is None or self._values is None else [self._keys, self._values]

    def _slots(self) -> int:
        """Rows in the buffer."""
        return self.length - self._dropped

    def _write(self, keys: mx.array, values: mx.array) -> None:
        start, rows = self._slots(), keys.shape[2]
        self._keys = _put(self._keys, keys, start, rows)
        self._values = _put(self._values, values, start, rows)

    def _visible(self, buffer: mx.array | None, block: int) -> mx.array:
        assert buffer is not None
        end = self._slots() + block
        if self.window is None:
            return buffer[:, :, :end]
        start = end - block - self.window
        if start <= self.sinks:
            return buffer[:, :, :end]
        if not self.sinks:
            return buffer[:, :, start:end]
        return mx.concatenate([buffer[:, :, : self.sinks], buffer[:, :, start:end]], axis=2)

    def _compact(self) -> None:
        """Drop rows behind the window once a step's worth has gathered."""
        if self.window is None:
            return
        gone = self._slots() - self.sinks - self.window
        if gone < STEP:
            return
        self._keys = self._without(self._keys, gone)
        self._values = self._without(self._values, gone)
        self._dropped += gone

    def _without(self, buffer: mx.array | None, gone: int) -> mx.array:
        assert buffer is not None
        kept = buffer[:, :, self.sinks + gone : self._slots()]
        if not self.sinks:
            return mx.contiguous(kept)
        return mx.concatenate([buffer[:, :, : self.sinks], kept], axis=2)


def _put(buffer: mx.array | None, rows: mx.array, start: int, count: int) -> mx.array:
    end = start + count
    if buffer is None or end > buffer.shape[2]:
        batch, heads, _, dim = rows.shape
        size = -(-end // STEP) * STEP
        grown = mx.zeros((batch, heads, size, dim), rows.dtype)
        if buffer is not None and start:
            grown[:, :, :start] = buffer[:, :, :start]
        buffer = grown
    buffer[:, :, start:end] = rows
    return buffer
