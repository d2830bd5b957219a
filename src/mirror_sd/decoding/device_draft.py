"""A draft whose programs run on a device, in the place of the MLX draft."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np

from ..devices.device import DeviceError, Hosted
from ..errors import Notice
from ..models.context_columns import ContextColumns
from ..models.draft import DFlashDraft
from .device_context import DeviceContext, Given
from .work import BLOCK, BRANCHES, Work

REMEMBERED = 4096  # calls of which nobody has asked yet


class DeviceDraft:
    """Drafts on a device; should it fail, by the MLX draft from there on, with a notice.

    Args:
        draft: the MLX draft; embeds blocks, selects tokens, and takes over.
        make: gives an empty context on the device.
        window: positions that the device's context holds; so many are remembered for the MLX draft.
        room: positions of a block that one call holds.
        streamed: the device takes context as keys and values, which MLX computes, not as features.
    """

    def __init__(
        self,
        draft: DFlashDraft,
        make: Callable[[], Hosted],
        window: int,
        room: int = 64,
        streamed: bool = False,
    ):
        self.config, self.select, self.room = draft.config, draft.select, room
        self.failed = False
        self._draft, self._make, self._window = draft, make, window
        self._columns = ContextColumns(draft) if streamed else None
        self._lane = ThreadPoolExecutor(1, "draft")  # the device takes one call at a time
        self._done: deque[Work] = deque(maxlen=REMEMBERED)

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """An empty context. It holds what the device was compiled for: `window` and `sinks` are not
        looked at.
        """
        hosted = None if self.failed else self._make()
        return [DeviceContext(self._draft, hosted, self._window, self._columns, self._wait)]

    def extend(self, features: mx.array, context: Any) -> None:
        """Keep features [1, n, taps * H] for the next block."""
        context[0].extend(features)

    def stream(self, taps: Sequence[mx.array], position: int) -> mx.array | None:
        """What the device takes, of single taps [1, n, H] whose first row stands at `position`;
        None if that is features.
        """
        if self._columns is None or self.failed:
            return None
        return self._columns.of_taps(taps, position)

    def append(self, rows: mx.array, context: Any) -> None:
        """Keep rows of `stream` for the next block."""
        context[0].append(rows)

    def __call__(self, embedded: mx.array, context: Any) -> mx.array:
        """Hidden states [1, b, H] of an embedded block."""
        (one,) = context
        if one.hosted is not None and not self.failed:
            try:
                return self._on_device(embedded, one)
            except DeviceError as error:
                self._give_up(error)
        return self._draft(embedded, one.on_mlx())

    def ahead(
        self, embedded: mx.array, positions: np.ndarray, seen: np.ndarray, context: Any
    ) -> Future[np.ndarray]:
        """Draft while something else runs.

        Args:
            embedded: [1, b, H], computed already.
            positions: [b], counted from the end of the context.
            seen: [b, b] which rows each row sees.
            context: as of `make_context`.

        Returns:
            Hidden states [b, H], or what went wrong.
        """
        (one,) = context
        assert one.hosted is not None
        given, block = one.take(), self._numpy(embedded)
        return self._lane.submit(
            self._draft_behind, one.hosted, given, block, BRANCHES, positions, seen
        )

    def work(self) -> list[Work]:
        """What the device has done since this was asked last, or the latest of it."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def prepare(self, context: Any) -> None:
        """Have the context at hand: later, reading it would wait for all that is queued."""
        context[0].prepare()

    def give_up(self, error: DeviceError) -> None:
        """Let the MLX draft take over, and say so."""
        if not self.failed:
            self._give_up(error)

    def _on_device(self, embedded: mx.array, context: DeviceContext) -> mx.array:
        assert context.hosted is not None
        block = self._numpy(embedded)
        given = context.take()
        hidden = self._lane.submit(self._draft_behind, context.hosted, given, block, BLOCK).result()
        return mx.array(hidden)[None].astype(self._draft.fc_dtype)

    def _draft_behind(
        self,
        hosted: Hosted,
        given: Given,
        block: np.ndarray,
        what: str,
        offsets: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Hidden states [b, H] of a block behind the context and what is given."""
        try:
            hosted.skip(given.skipped)
            rest = hosted.absorb(given.rows)
            positions = None if offsets is None else offsets + hosted.length + len(rest)
            return hosted(rest, block, positions, seen)
        finally:
            self._done += [Work(what, *span) for span in hosted.busy()]

    def _wait(self) -> None:
        """Until the device is idle: what it works on must not be changed."""
        self._lane.submit(int).result()

    def _numpy(self, embedded: mx.array) -> np.ndarray:
        return np.array(self._draft.enter(embedded)[0].astype(mx.float32))

    def _give_up(self, error: DeviceError) -> None:
        self.failed = True
        warnings.warn(
            f"the draft's device failed: {error}; the draft runs with MLX from here on. The text "
            "stays the same",
            Notice,
            stacklevel=4,
        )
