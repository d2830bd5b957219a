"""A draft whose programs run on a device, in the place of the MLX draft."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import numpy as np

from ..caches.context import ContextCache
from ..devices.device import DeviceError, Hosted
from ..errors import Notice
from ..models.draft import DFlashDraft
from .work import BLOCK, BRANCHES, Work

REMEMBERED = 4096  # calls of which nobody has asked yet


class DeviceDraft:
    """Drafts on a device; should it fail, by the MLX draft from there on, with a notice.

    Args:
        draft: the MLX draft; embeds blocks, selects tokens, and takes over.
        make: gives an empty context on the device.
        window: positions that the device's context holds; so many are remembered for the MLX draft.
        room: positions of a block that one call holds.
    """

    def __init__(self, draft: DFlashDraft, make: Callable[[], Hosted], window: int, room: int = 64):
        self.config, self.select, self.room = draft.config, draft.select, room
        self.failed = False
        self._draft, self._make, self._window = draft, make, window
        self._lane = ThreadPoolExecutor(1, "draft")  # the device takes one call at a time
        self._done: deque[Work] = deque(maxlen=REMEMBERED)

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """An empty context. It holds what the device was compiled for: `window` and `sinks` are not
        looked at.
        """
        hosted = None if self.failed else self._make()
        return [_Context(self._draft, hosted, self._window, self._wait)]

    def extend(self, features: mx.array, context: Any) -> None:
        """Keep features [1, n, taps * H] for the next block."""
        context[0].extend(features)

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
        features, block = one.take(), self._numpy(embedded)
        return self._lane.submit(
            self._draft_behind, one.hosted, features, block, BRANCHES, positions, seen
        )

    def work(self) -> list[Work]:
        """What the device has done since this was asked last, or the latest of it."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def prepare(self, context: Any) -> None:
        """Have the features at hand: later, reading them would wait for all that is queued."""
        context[0].prepare()

    def give_up(self, error: DeviceError) -> None:
        """Let the MLX draft take over, and say so."""
        if not self.failed:
            self._give_up(error)

    def _on_device(self, embedded: mx.array, context: _Context) -> mx.array:
        assert context.hosted is not None
        block = self._numpy(embedded)
        features = context.take()
        hidden = self._lane.submit(
            self._draft_behind, context.hosted, features, block, BLOCK
        ).result()
        return mx.array(hidden)[None].astype(self._draft.fc_dtype)

    def _draft_behind(
        self,
        hosted: Hosted,
        features: np.ndarray,
        block: np.ndarray,
        what: str,
        offsets: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> np.ndarray:
        """Hidden states [b, H] of a block behind the context and these features."""
        try:
            rest = hosted.absorb(features)
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


class _Context:
    """One text's, on the device, or in MLX once that has failed."""

    def __init__(
        self,
        draft: DFlashDraft,
        hosted: Hosted | None,
        window: int,
        wait: Callable[[], None] = lambda: None,
    ):
        self.hosted = hosted
        self._draft, self._window, self._wait = draft, window, wait
        self._ready: np.ndarray | None = None
        self._caches: list[ContextCache] | None = None
        # Features in pieces, the latest last: those that the device holds, and those it does not.
        self._given: deque[mx.array] = deque()
        self._waiting: list[mx.array] = []
        self.length = 0

    @property
    def arrays(self) -> list[mx.array]:
        """Lazy buffers."""
        if self._caches is not None:
            return [array for cache in self._caches for array in cache.arrays]
        return self._waiting

    def extend(self, features: mx.array) -> None:
        """Take in features [1, n, taps * H]."""
        self.length += features.shape[1]
        if self._caches is not None:
            self._draft.extend(features, self._caches)
        else:
            self._waiting.append(features)
            self._ready = None

    def take(self) -> np.ndarray:
        """Features [n, taps * H] that the device was not given; they count as given."""
        self.prepare()
        ready, self._ready, waiting, self._waiting = self._ready, None, self._waiting, []
        if ready is None:
            return np.zeros((0, len(self._draft.config.taps) * self._draft.config.hidden_size))
        self._given += waiting
        held = sum(map(_rows, self._given))
        while held - _rows(self._given[0]) >= self._window:
            held -= _rows(self._given.popleft())
        return ready

    def prepare(self) -> None:
        """Read what `take` will give."""
        if self._waiting and self._ready is None:
            self._waiting = [mx.concatenate(self._waiting, axis=1)]
            self._ready = np.array(self._waiting[0][0].astype(mx.float32))

    def on_mlx(self) -> list[ContextCache]:
        """The context in MLX, made of what is remembered."""
        if self._caches is None:
            self._wait()
            self._caches = self._draft.make_context(self._window)
            pieces = [*self._given, *self._waiting]
            for cache in self._caches:
                cache.skip(self.length - sum(map(_rows, pieces)))
            if pieces:
                self._draft.extend(mx.concatenate(pieces, axis=1), self._caches)
            self._given, self._waiting, self.hosted = deque(), [], None
        return self._caches

    def trim_to(self, length: int) -> None:
        """Forget everything behind the first `length` positions."""
        gone, self.length = self.length - length, length
        if self._caches is not None:
            for cache in self._caches:
                cache.trim_to(min(length, cache.length))
            return
        self._wait()
        self._ready = None
        for pieces in (self._waiting, self._given):
            while gone and pieces:
                last = pieces.pop()
                left = _rows(last) - gone
                if left > 0:
                    pieces.append(last[:, :left])
                gone = max(0, -left)
        if self.hosted is not None:
            self.hosted.trim_to(length)


def _rows(features: mx.array) -> int:
    return features.shape[1]
