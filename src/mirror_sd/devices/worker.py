"""A device in a process of its own, behind shared memory.

Some libraries hold Python's lock while they compute, and a driver can take its process with it.
In a worker, neither reaches the process that verifies: that one waits on a pipe, and what crashes
or hangs is ended and reported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .device import Arrays, Device, DeviceError, Span
from .shared import Lasting, Layout, Segment, room, views, write

LOAD_SECONDS = 120.0  # a Neural Engine's first compilation takes long
CALL_SECONDS = 10.0
END_SECONDS = 2.0


class WorkerDevice:
    """A device that another process makes and runs.

    Args:
        make: makes the device over there; must be picklable.
        inputs: bytes that the inputs of one call take at most, but for arrays of `allocate`.
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
        self._inputs = Segment.new(room(inputs))
        self._outputs = Segment.new(room(outputs))
        self._lasting = Lasting()
        self._busy: list[Span] = []
        processes = multiprocessing.get_context("spawn")
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(
            target=_serve,
            args=(make, theirs, self._inputs.name, self._outputs.name),
            daemon=True,
            name="mirror-sd draft",
        )
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
            layout = write(arrays, self._inputs, self._lasting)
            self._pipe.send((part, layout, self._lasting.gone()))
            found, span = self._receive(self._call_seconds, "answer")
        except (OSError, ValueError) as error:
            self.close()
            raise DeviceError(f"its process cannot be reached: {error}") from error
        except DeviceError:
            self.close()
            raise
        self._busy.append(span)
        return {name: values.copy() for name, values in views(found, {"": self._outputs}).items()}

    def allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros in fp16, in memory that the worker sees, too."""
        return self._lasting.allocate(shape)

    def busy(self) -> list[Span]:
        """When the worker computed, by its own clock, since this was asked last."""
        busy, self._busy = self._busy, []
        return busy

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
            memory.leave(unlink=True)
        self._lasting.close()

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
    memories, found = {"": Segment(inputs)}, Segment(outputs)
    pipe.send(("loaded", None))
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            message = None
        if message is None:
            break
        part, layout, gone = message
        for name in gone:
            if name in memories:
                memories.pop(name).leave()
        pipe.send(_answer(device, part, layout, memories, found))
    device.close()
    for memory in (*memories.values(), found):
        memory.leave()


def _answer(
    device: Device, part: int, layout: Layout, memories: dict[str, Segment], found: Segment
) -> tuple[str, Any]:
    try:
        for *_, name in layout:
            if name not in memories:
                memories[name] = Segment(name)
        given = views(layout, memories)
        begin = time.perf_counter()
        results = device(part, given)
        end = time.perf_counter()
        return "done", (write(results, found), (begin, end))
    except Exception as error:
        return "error", str(error) or type(error).__name__
