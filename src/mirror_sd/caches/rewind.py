"""Taking a target's caches back to what was accepted, exactly, for every kind that mlx-lm makes.

A verify writes one row per drafted token into every layer's cache. `mark` before it and `rewind`
after it leave the cache as if only the accepted tokens had been seen. `save` and `restore` go back
over any number of passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from ..errors import UnsupportedError


class Replayer(Protocol):
    """Runs the recurrences of a verify again, from the marked state."""

    def replay(self, cache: ArraysCache, keep: int) -> None:
        """Advance `cache`, which holds the marked state, over the first `keep` rows."""


class Rewindable(Protocol):
    """One layer's cache, with a way back."""

    def mark(self, rejectable: bool) -> None:
        """Rows are about to be written; some of them may be rejected if `rejectable`."""

    def rewind(self, rows: int, keep: int) -> None:
        """Of the `rows` rows written since `mark`, keep the first `keep`."""

    def can_trim(self, count: int) -> bool:
        """Whether forgetting the latest `count` rows, without a mark, is exact."""

    def trim(self, count: int) -> None:
        """Forget the latest `count` rows."""

    def recover(self, length: int) -> bool:
        """Take back whatever was written behind `length` rows since `mark`, if that is exact."""

    def save(self) -> Any:
        """The present state, to come back to; arrays are values, so it copies nothing."""

    def restore(self, saved: Any) -> None:
        """Back to a saved state. Since then, rows may only have been written behind it."""

    def clear(self) -> None:
        """Back to empty."""


class Trimmed:
    """Rows in order behind one offset: forgetting rows is moving the offset."""

    def __init__(self, cache: Any):
        self.cache = cache
        self._empty = dict(vars(cache))

    def mark(self, rejectable: bool) -> None:
        """Nothing to remember: old rows are never overwritten."""

    def rewind(self, rows: int, keep: int) -> None:
        """Move the offset."""
        self.trim(rows - keep)

    def can_trim(self, count: int) -> bool:
        """Always."""
        return True

    def trim(self, count: int) -> None:
        """Move the offset."""
        self.cache.trim(count)

    def recover(self, length: int) -> bool:
        """The offset tells how many rows were written."""
        self.trim(self.cache.offset - length)
        return True

    def save(self) -> Any:
        """The offset."""
        return self.cache.offset

    def restore(self, saved: Any) -> None:
        """Forget what was written since."""
        self.trim(self.cache.offset - saved)

    def clear(self) -> None:
        """As it was made."""
        vars(self.cache).update(self._empty)


class Concatenated(Trimmed):
    """Rows without spare room: mlx-lm's `trim` moves the offset only, so the rows are cut too."""

    def trim(self, count: int) -> None:
        """Cut rows off the end."""
        cache = self.cache
        if not count:
            return
        cache.offset -= count
        if cache.offset == 0:
            cache.keys = cache.values = None
        else:
            cache.keys = cache.keys[..., : cache.offset, :]
            cache.values = cache.values[..., : cache.offset, :]


class Chunked(Trimmed):
    """Rows of the latest chunk: rows in front of it are gone, those behind are in order."""

    def save(self) -> Any:
        """References: the model may trim the chunk's front later."""
        return _references(self.cache)

    def restore(self, saved: Any) -> None:
        """Put them back."""
        vars(self.cache).update(saved)

    def can_trim(self, count: int) -> bool:
        """As long as no row in front of the chunk would be needed again."""
        return count == 0 or self.cache.start_position == 0


class Rotating(Trimmed):
    """A sliding window. Writing several rows puts it in order, in a new buffer, and leaves all but
    the oldest of the window's rows before them: with one accepted row or more, cutting the rejected
    ones off the end is exact even after the window has wrapped; with none, the old buffer comes
    back. Writing a single row overwrites the oldest one, but a single row is never rejected.
    """

    def __init__(self, cache: RotatingKVCache):
        super().__init__(cache)
        self._marked = dict(self._empty)

    def mark(self, rejectable: bool) -> None:
        """Keep references to the buffers, but not without need: they make a single row's write
        copy the window instead of changing it in place.
        """
        self._marked = _references(self.cache) if rejectable else dict(self._empty)

    def rewind(self, rows: int, keep: int) -> None:
        """Cut rows off the end, or restore the marked state."""
        if keep:
            self.trim(rows - keep)
        else:
            vars(self.cache).update(self._marked)
        self._marked = dict(self._empty)

    def trim(self, count: int) -> None:
        """Cut rows off the end of an ordered buffer."""
        cache = self.cache
        if not count:
            return
        cache.offset -= count
        cache._idx -= count
        if cache.offset == 0:
            cache.keys = cache.values = None
        else:
            cache.keys = cache.keys[..., : cache._idx, :]
            cache.values = cache.values[..., : cache._idx, :]

    def can_trim(self, count: int) -> bool:
        """Only before it wraps: afterwards the rows that would come back are gone."""
        return count == 0 or self.cache.offset < self.cache.max_size

    def recover(self, length: int) -> bool:
        """Exact unless a single row has overwritten the oldest one."""
        count = self.cache.offset - length
        if count > 1:
            vars(self.cache).update(self._marked)
        elif count == 1:
            if self.cache.offset > self.cache.max_size:
                return False
            self.trim(1)
        return True

    def save(self) -> Any:
        """References to the buffers."""
        return _references(self.cache)

    def restore(self, saved: Any) -> None:
        """Put them back."""
        vars(self.cache).update(saved)


class Recurrent:
    """Convolution and recurrence states: the marked state, advanced again over accepted rows."""

    def __init__(self, cache: ArraysCache, replayer: Replayer):
        self.cache = cache
        self._replayer = replayer
        self._size = len(cache.cache)
        self._marked: list[mx.array | None] = [None] * self._size

    def mark(self, rejectable: bool = True) -> None:
        """Keep references: arrays are values, and these caches replace theirs."""
        self._marked = self.save()

    def rewind(self, rows: int, keep: int) -> None:
        """Restore the marked state and replay the recurrence, unless all rows stay."""
        if keep < rows:
            self.restore(self._marked)
            if keep:
                self._replayer.replay(self.cache, keep)
        self.mark()

    def can_trim(self, count: int) -> bool:
        """A state has no rows to forget."""
        return count == 0

    def trim(self, count: int) -> None:
        """Nothing but zero rows."""
        assert count == 0

    def recover(self, length: int) -> bool:
        """Restore the marked state."""
        self.restore(self._marked)
        return True

    def save(self) -> Any:
        """References to the states."""
        return list(self.cache.cache)

    def restore(self, saved: Any) -> None:
        """Put them back."""
        self.cache.cache = list(saved)

    def clear(self) -> None:
        """No state."""
        self.cache.cache = [None] * self._size
        self.mark()


class Several:
    """A layer with several caches: each is rewound in its own way."""

    def __init__(self, parts: list[Rewindable]):
        self._parts = parts

    def mark(self, rejectable: bool) -> None:
        """Mark each."""
        for part in self._parts:
            part.mark(rejectable)

    def rewind(self, rows: int, keep: int) -> None:
        """Rewind each."""
        for part in self._parts:
            part.rewind(rows, keep)

    def can_trim(self, count: int) -> bool:
        """If each can."""
        return all(part.can_trim(count) for part in self._parts)

    def trim(self, count: int) -> None:
        """Trim each."""
        for part in self._parts:
            part.trim(count)

    def recover(self, length: int) -> bool:
        """Recover each."""
        return all(part.recover(length) for part in self._parts)

    def save(self) -> Any:
        """Of each."""
        return [part.save() for part in self._parts]

    def restore(self, saved: Any) -> None:
        """Each."""
        for part, state in zip(self._parts, saved, strict=True):
            part.restore(state)

    def clear(self) -> None:
        """Clear each."""
        for part in self._parts:
            part.clear()


def _references(cache: Any) -> dict[str, Any]:
    """A cache's fields as they are now. Writing into an array changes the Python object that holds
    it, so each array gets another one; its data is not copied.
    """
    return {
        name: copy.copy(value) if isinstance(value, mx.array) else value
        for name, value in vars(cache).items()
    }


# By exact type: a subclass may mean something else by its rows.
KINDS: dict[type, Callable[[Any], Rewindable]] = {
    KVCache: Trimmed,
    QuantizedKVCache: Trimmed,
    ConcatenateKVCache: Concatenated,
    ChunkedKVCache: Chunked,
    RotatingKVCache: Rotating,
}


def rewindable(cache: Any, replayer: Replayer) -> Rewindable:
    """The way back for one cache.

    Raises:
        UnsupportedError: no exact way is known; the message names the kind.
    """
    kind = type(cache)
    if kind in KINDS:
        return KINDS[kind](cache)
    if kind is ArraysCache:
        return Recurrent(cache, replayer)
    if kind is CacheList:
        return Several([rewindable(part, replayer) for part in cache.caches])
    raise UnsupportedError(
        f"the target's layers use {kind.__name__}, which mirror-sd cannot rewind exactly"
    )
