"""What a draft's device knows of one text, and what it has not been given yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..caches.context import ContextCache
from ..devices.device import Hosted
from ..models.context_columns import ContextColumns
from ..models.draft import DFlashDraft


@dataclass(frozen=True)
class Given:
    """For the device.

    Attributes:
        skipped: positions before `rows` that it has no room for.
        rows: [n, width] features, or keys and values, in fp32.
    """

    skipped: int
    rows: np.ndarray


class DeviceContext:
    """One text's context, on the device, or in MLX once that has failed.

    Args:
        draft: takes over.
        hosted: on the device; None if it has failed before.
        window: positions that the device holds: no more are kept here.
        columns: the device takes keys and values; None: features.
        wait: until the device is idle.
    """

    def __init__(
        self,
        draft: DFlashDraft,
        hosted: Hosted | None,
        window: int,
        columns: ContextColumns | None = None,
        wait: Callable[[], None] = lambda: None,
    ):
        self.hosted = hosted
        self.length = 0
        self._draft, self._window, self._columns, self._wait = draft, window, columns, wait
        self._ready: np.ndarray | None = None
        self._caches: list[ContextCache] | None = None
        # Rows in pieces, the latest last: those that the device holds, and those it does not.
        self._given: deque[mx.array] = deque()
        self._waiting: deque[mx.array] = deque()
        self._skipped = 0  # positions before the waiting ones that the device does not know of

    @property
    def arrays(self) -> list[mx.array]:
        """Lazy buffers."""
        if self._caches is not None:
            return [array for cache in self._caches for array in cache.arrays]
        return list(self._waiting)

    def extend(self, features: mx.array) -> None:
        """Take in features [1, n, taps * H]."""
        if self._caches is not None:
            self._draft.extend(features, self._caches)
            self.length += _rows(features)
            return
        features = self._newest(features)
        if self._columns is not None:
            features = self._columns.of_features(features, self.length)
        self._keep(features)

    def append(self, rows: mx.array) -> None:
        """Take in keys and values, as `ContextColumns` packs them."""
        if self._caches is None:
            self._keep(rows)
            return
        assert self._columns is not None
        self._columns.append(rows, self._caches)
        self.length += _rows(rows)

    def take(self) -> Given:
        """What the device was not given; it counts as given."""
        self.prepare()
        ready, self._ready = self._ready, None
        skipped, self._skipped = self._skipped, 0
        if ready is None:
            return Given(skipped, np.zeros((0, self._width)))
        self._given += self._waiting
        self._waiting.clear()
        _bound(self._given, self._window)
        return Given(skipped, ready)

    def prepare(self) -> None:
        """Read what `take` will give."""
        if self._waiting and self._ready is None:
            self._waiting = deque([mx.concatenate(list(self._waiting), axis=1)])
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
                self._fill(mx.concatenate(pieces, axis=1), self._caches)
            self._given, self._waiting, self.hosted = deque(), deque(), None
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
        gone = _cut(self._waiting, gone)
        known = max(0, self._skipped - gone)
        gone, self._skipped = max(0, gone - self._skipped), known
        _cut(self._given, gone)
        if self.hosted is not None:
            self.hosted.trim_to(length)

    @property
    def _width(self) -> int:
        config = self._draft.config
        return self._columns.width if self._columns else len(config.taps) * config.hidden_size

    def _newest(self, features: mx.array) -> mx.array:
        """As many of the latest as the device holds; the rest is skipped."""
        over = _rows(features) - self._window
        if over <= 0:
            return features
        self.length += over
        self._skipped += sum(map(_rows, self._waiting)) + over
        self._waiting.clear()
        return features[:, over:]

    def _keep(self, rows: mx.array) -> None:
        """Wait to be taken, as far as there is room: a long prompt comes in many pieces."""
        self.length += _rows(rows)
        self._waiting.append(rows)
        self._ready = None
        self._skipped += _bound(self._waiting, self._window)
        if self._skipped:
            self._given.clear()  # all of it is older than what was skipped

    def _fill(self, rows: mx.array, caches: list[ContextCache]) -> None:
        if self._columns is None:
            self._draft.extend(rows, caches)
        else:
            self._columns.append(rows, caches)


def _rows(piece: mx.array) -> int:
    return piece.shape[1]


def _bound(pieces: deque[mx.array], window: int) -> int:
    """Drop the oldest pieces that leave `window` rows; how many rows have gone."""
    held, gone = sum(map(_rows, pieces)), 0
    while pieces and held - gone - _rows(pieces[0]) >= window:
        gone += _rows(pieces.popleft())
    return gone


def _cut(pieces: deque[mx.array], gone: int) -> int:
    """Drop the latest `gone` rows; how many of them were not there."""
    while gone and pieces:
        last = pieces.pop()
        left = _rows(last) - gone
        if left > 0:
            pieces.append(last[:, :left])
        gone = max(0, -left)
    return gone
