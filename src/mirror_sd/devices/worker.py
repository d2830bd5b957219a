"""A device in a process of its own, behind shared memory.

Some libraries hold Python's lock while they compute, and a driver can take its process with it.
In a worker, neither reaches the process that verifies: that one waits on a pipe, and what crashes
or hangs is ended and reported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from .device import Arrays, Device, DeviceError

LOAD_SECONDS = 120.0  # a Neural Engine's first compilation takes long
CALL_SECONDS = 10.0
END_SECONDS = 2.0
ALIGN = 64

Layout = list[tuple[str, tuple[int, ...], str, int]]


class WorkerDevice:
    """A device that another process makes and runs.

    Args:
        make: makes the device over there; must be picklable.
        inputs: bytes that the inputs of one call take at most.
        outputs: bytes that its outputs take at most.
        load_seconds: how long making it may take.
        call_seconds: how long a call may take.

    Raises:
        DeviceError: it cannot be made, or not in time.
    """

    def __init__(
        self,
        make: Callable[[], Device],
        inputs: int,
        outputs: int,
        load_seconds: float = LOAD_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ):
        self._call_seconds = call_seconds
        self._inputs = SharedMemory(create=True, size=_room(inputs))
        self._outputs = SharedMemory(create=True, size=_room(outputs))
        processes = multiprocessing.get_context("spawn")
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(
            target=_serve,
            args=(make, theirs, self._inputs.name, self._outputs.name),
            daemon=True,
            name="mirror-sd draft",
        )
        self.intervals: list[tuple[int, int]] = []
        try:
            self._process.start()
            theirs.close()
            self._receive(load_seconds, "load")
        except BaseException:
            self.close()
            raise

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name, copied out of the shared memory.

        Raises:
            DeviceError: the worker crashed, hung, or raised. It has ended then.
        """
        if self._process.exitcode is not None:
            raise DeviceError(self._how_it_ended())
        try:
            layout = _write(arrays, self._inputs)
            self._pipe.send((part, layout))
            found, begin, end = self._receive(self._call_seconds, "answer")
        except (OSError, ValueError) as error:
            self.close()
            raise DeviceError(f"its process cannot be reached: {error}") from error
        except DeviceError:
            self.close()
            raise
        self.intervals.append((begin, end))
        return {name: values.copy() for name, values in _views(found, self._outputs).items()}

    @property
    def pid(self) -> int | None:
        """The worker's process."""
        return self._process.pid

    def close(self) -> None:
        """End the worker, and free the shared memory."""
        with contextlib.suppress(OSError, ValueError):
            self._pipe.send(None)
        self._pipe.close()
        if self._process.pid is not None:
            self._process.join(END_SECONDS if self._process.exitcode is None else 0)
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()
        for memory in (self._inputs, self._outputs):
            with contextlib.suppress(FileNotFoundError):
                memory.close()
                memory.unlink()

    def _receive(self, seconds: float, what: str) -> Any:
        """The worker's next message."""
        if not self._pipe.poll(seconds):
            self._process.kill()
            raise DeviceError(f"it did not {what} within {seconds:g} s")
        try:
            kind, content = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(END_SECONDS)
            raise DeviceError(self._how_it_ended()) from None
        if kind == "error":
            raise DeviceError(content)
        return content

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        return "its process ended" + (f" by signal {-code}" if code and code < 0 else f" ({code})")


def _serve(make: Callable[[], Device], pipe: Connection, inputs: str, outputs: str) -> None:
    """The worker: ends when the other side does."""
    try:
        device = make()
    except Exception as error:
        pipe.send(("error", f"it cannot be loaded: {error}"))
        return
    given, found = SharedMemory(inputs), SharedMemory(outputs)
    pipe.send(("loaded", None))
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            message = None
        if message is None:
            break
        pipe.send(_answer(device, message, given, found))
    device.close()
    given.close()
    found.close()


def _answer(
    device: Device, message: tuple[int, Layout], given: SharedMemory, found: SharedMemory
) -> tuple[str, Any]:
    part, layout = message
    begin = time.monotonic_ns()
    try:
        results = device(part, _views(layout, given))
        end = time.monotonic_ns()
        return "done", (_write(results, found), begin, end)
    except Exception as error:
        return "error", str(error) or type(error).__name__


def _room(size: int) -> int:
    """Each tensor is aligned; a call has a few dozen at most."""
    return size + 64 * ALIGN


def _write(arrays: Arrays, memory: SharedMemory) -> Layout:
    layout: Layout = []
    offset = 0
    for name, values in arrays.items():
        end = offset + values.nbytes
        if end > memory.size:
            raise DeviceError(f"{name} does not fit the {memory.size} bytes that are shared")
        view: np.ndarray = np.ndarray(values.shape, values.dtype, memory.buf, offset)
        view[...] = values
        layout.append((name, values.shape, values.dtype.str, offset))
        offset = -(-end // ALIGN) * ALIGN
    return layout


def _views(layout: Layout, memory: SharedMemory) -> Mapping[str, np.ndarray]:
    return {
        name: np.ndarray(shape, np.dtype(kind), memory.buf, offset)
        for name, shape, kind, offset in layout
    }
