"""Arrays in memory that two processes share."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from .device import Arrays, DeviceError

ALIGN = 64
PREFIX = "mirror-sd"  # names may have 31 characters on macOS
_numbers = itertools.count()

# Name, shape, type, offset, and the segment if it is not the call's own.
Entry = tuple[str, tuple[int, ...], str, int, str]
Layout = list[Entry]


class Segment(SharedMemory):
    """Shared memory that may be left while arrays still look at it: they keep it mapped."""

    def __del__(self) -> None:
        with contextlib.suppress(BufferError):
            super().__del__()

    @classmethod
    def new(cls, size: int) -> Segment:
        """A new one, named after this process: what a crash leaves behind can be told."""
        while True:
            with contextlib.suppress(FileExistsError):
                return cls(f"{PREFIX}-{os.getpid()}-{next(_numbers)}", create=True, size=size)

    def leave(self, unlink: bool = False) -> None:
        """Give it back; with `unlink`, no other process can open it from here on."""
        with contextlib.suppress(BufferError):
            self.close()
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                self.unlink()


class Lasting:
    """Arrays that stay where they are: what is in them need not be sent."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[Segment, weakref.ref[np.ndarray]]] = {}
        self._gone: list[str] = []

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros in fp16. Their memory is given back when nobody refers to the array itself."""
        count = int(np.prod(shape))
        if not count:
            return np.zeros(shape, np.float16)
        segment = Segment.new(2 * count)
        # Unlike np.ndarray, np.frombuffer keeps the memory from being unmapped under the array.
        assert segment.buf is not None
        found = np.frombuffer(segment.buf, np.float16, count).reshape(shape)
        found[...] = 0
        self._segments[id(found)] = segment, weakref.ref(found)
        weakref.finalize(found, self._free, id(found))
        return found

    def entry(self, name: str, values: np.ndarray) -> Entry | None:
        """Where an array lies; None if it was not allocated here."""
        segment, known = self._segments.get(id(values), (None, None))
        if segment is None or known is None or known() is not values:
            return None
        return name, values.shape, values.dtype.str, 0, segment.name

    def gone(self) -> list[str]:
        """Segments given back since this was asked last."""
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        """Give all of them back."""
        for key in list(self._segments):
            self._free(key)

    def _free(self, key: int) -> None:
        segment, _ = self._segments.pop(key, (None, None))
        if segment is not None:
            self._gone.append(segment.name)
            segment.leave(unlink=True)


def room(size: int) -> int:
    """Each tensor is aligned; a call has a few dozen at most."""
    return size + 64 * ALIGN


def write(arrays: Arrays, memory: SharedMemory, lasting: Lasting | None = None) -> Layout:
    """Copy arrays into the memory, but for those that last.

    Raises:
        DeviceError: they do not fit.
    """
    layout: Layout = []
    offset = 0
    for name, values in arrays.items():
        known = lasting.entry(name, values) if lasting is not None else None
        if known is not None:
            layout.append(known)
            continue
        end = offset + values.nbytes
        if end > memory.size:
            raise DeviceError(f"{name} does not fit the {memory.size} bytes that are shared")
        view: np.ndarray = np.ndarray(values.shape, values.dtype, memory.buf, offset)
        view[...] = values
        layout.append((name, values.shape, values.dtype.str, offset, ""))
        offset = -(-end // ALIGN) * ALIGN
    return layout


def views(layout: Layout, memories: Mapping[str, SharedMemory]) -> Arrays:
    """The arrays of a layout, where they lie: segments by name, the call's own as ""."""
    return {
        name: np.ndarray(shape, np.dtype(kind), memories[segment].buf, offset)
        for name, shape, kind, offset, segment in layout
    }
