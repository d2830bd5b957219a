"""A device in a worker: right answers, and every way to fail reported and cleaned up."""

from __future__ import annotations

import os
import time
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from mirror_sd.devices.device import Checked, DeviceError
from mirror_sd.devices.latency import LatencyDevice
from mirror_sd.devices.worker import WorkerDevice

from .stand_ins import Doubling, Failing, Slow, broken

X = {"x": np.arange(1000, dtype=np.float16).reshape(10, 100)}


def worker(make, outputs=4000, **settings) -> WorkerDevice:
    return WorkerDevice(make, 4000, outputs, **settings)


def is_gone(device: WorkerDevice) -> bool:
    """Neither process nor shared memory is left."""
    try:
        os.kill(device.pid, 0)
        alive = True
    except (ProcessLookupError, TypeError):
        alive = False
    left = []
    for memory in (device._inputs, device._outputs):
        try:
            SharedMemory(memory.name).close()
            left.append(memory.name)
        except FileNotFoundError:
            pass
    return not alive and not left


def test_answers_come_back():
    device = worker(Doubling)
    for factor in (1, 3):
        given = {"x": X["x"] * np.float16(factor)}
        assert np.array_equal(device(0, given)["y"], given["x"] * 2)
    assert [begin < end < time.perf_counter() for begin, end in device.busy()] == [True, True]
    assert device.busy() == []
    device.close()
    assert is_gone(device)


def test_the_clock_is_the_systems_in_every_process():
    clock = time.get_clock_info("perf_counter")
    assert clock.monotonic
    assert clock.implementation == time.get_clock_info("monotonic").implementation
    before = time.perf_counter()
    device = worker(Doubling)
    device(0, X)
    ((begin, end),) = device.busy()
    assert before < begin < end < time.perf_counter()
    device.close()


def test_arrays_that_last_are_not_sent():
    """More than what is sent could hold, seen with its present content, and given back."""
    device = worker(Doubling, 2_000_000)
    large = device.allocate((1000, 1000))
    assert large.dtype == np.float16
    assert not large.any()
    for value in (1, 2):
        large[:10, :100] = value
        assert np.array_equal(device(0, {"x": large})["y"][:10, :100], X["x"] * 0 + 2 * value)
    entry = device._lasting.entry("x", large)
    del large
    with pytest.raises(FileNotFoundError):
        SharedMemory(entry[-1])
    device(0, X)
    last = device.allocate((10, 10))
    entry = device._lasting.entry("x", last)
    device.close()
    assert is_gone(device)
    with pytest.raises(FileNotFoundError):
        SharedMemory(entry[-1])
    last[...] = 1  # still there for whoever holds it


def test_an_answer_outlives_the_next_call():
    device = worker(Doubling)
    first = device(0, X)["y"]
    device(0, {"x": X["x"] * 0})
    assert np.array_equal(first, X["x"] * 2)
    device.close()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("die", "ended by signal 9"),
        ("hang", r"did not answer within 0\.5 s"),
        ("refuse", "no such function"),
    ],
)
def test_failures_are_told_and_nothing_is_left(how, what):
    device = worker(Failing(Doubling, 1, how), call_seconds=0.5)
    device(0, X)
    with pytest.raises(DeviceError, match=what):
        device(0, X)
    assert is_gone(device)
    with pytest.raises(DeviceError):
        device(0, X)


def test_values_that_are_not_finite():
    device = Checked(worker(Failing(Doubling, 1, "nan")))
    device(0, X)
    with pytest.raises(DeviceError, match="values in y that are not finite"):
        device(0, X)
    device.close()


def test_a_device_that_cannot_be_loaded():
    with pytest.raises(DeviceError, match="cannot be loaded: no such package"):
        worker(broken)


def test_a_device_that_takes_too_long_to_load():
    start = time.monotonic()
    with pytest.raises(DeviceError, match=r"did not load within 0\.2 s"):
        worker(Slow(30), load_seconds=0.2)
    assert time.monotonic() - start < 20


def test_inputs_that_do_not_fit():
    device = worker(Doubling)
    with pytest.raises(DeviceError, match="does not fit"):
        device(0, {"x": np.zeros(100_000, np.float16)})
    device.close()


@pytest.mark.parametrize("holds_gil", [False, True])
def test_a_latency_device_takes_its_time(holds_gil):
    device = LatencyDevice(Doubling(), 0.05, holds_gil)
    start = time.monotonic()
    assert np.array_equal(device(0, X)["y"], X["x"] * 2)
    assert time.monotonic() - start >= 0.049


def test_who_holds_the_lock_stops_the_others():
    """Another thread counts on while a device waits, unless the device holds Python's lock."""
    import threading

    counts = {}
    for holds_gil in (False, True):
        device, seen, stop = LatencyDevice(Doubling(), 0.3, holds_gil), [0], threading.Event()

        def count(seen=seen, stop=stop):
            while not stop.is_set():
                seen[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        before = seen[0]
        device(0, X)
        counts[holds_gil] = seen[0] - before
        stop.set()
        thread.join()
    assert counts[False] > 10 * max(counts[True], 1)
