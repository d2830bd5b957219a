"""A draft whose programs run on a device, in the place of the MLX draft."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..caches.context import ContextCache
from ..devices.device import DeviceError, Hosted
from ..errors import Notice
from ..models.draft import DFlashDraft


class DeviceDraft:
    """Drafts on a device; should it fail, by the MLX draft from there on, with a notice.

    Args:
        draft: the MLX draft; embeds blocks, selects tokens, and takes over.
        make: gives an empty context on the device.
        window: positions that the device's context holds; so many are remembered for the MLX draft.
    """

    def __init__(self, draft: DFlashDraft, make: Callable[[], Hosted], window: int):
        self.config, self.select = draft.config, draft.select
        self.failed = False
        self._draft, self._make, self._window = draft, make, window

    def make_context(self, window: int | None = None, sinks: int = 0) -> Sequence[Any]:
        """An empty context. It holds what the device was compiled for: `window` and `sinks` are not
        looked at.
        """
        return [_Context(self._draft, None if self.failed else self._make(), self._window)]

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

    def _on_device(self, embedded: mx.array, context: _Context) -> mx.array:
        assert context.hosted is not None
        block = np.array(self._draft.enter(embedded)[0].astype(mx.float32))
        features = context.hosted.absorb(context.take())
        hidden = context.hosted(features, block)
        return mx.array(hidden)[None].astype(self._draft.fc_dtype)

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

    def __init__(self, draft: DFlashDraft, hosted: Hosted | None, window: int):
        self.hosted = hosted
        self._draft, self._window = draft, window
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

    def take(self) -> np.ndarray:
        """Features [n, taps * H] that the device was not given; they count as given."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return np.zeros((0, len(self._draft.config.taps) * self._draft.config.hidden_size))
        self._given.append(mx.concatenate(waiting, axis=1))
        held = sum(map(_rows, self._given))
        while held - _rows(self._given[0]) >= self._window:
            held -= _rows(self._given.popleft())
        return np.array(self._given[-1][0].astype(mx.float32))

    def on_mlx(self) -> list[ContextCache]:
        """The context in MLX, made of what is remembered."""
        if self._caches is None:
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
