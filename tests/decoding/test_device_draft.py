"""Drafting on a device: the text is plain decoding's, and a device that fails is replaced."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirror_sd.ane import plan as plans
from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.shapes import Bucket
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.device_draft import DeviceDraft
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.devices.device import Checked, Inline
from mirror_sd.devices.shared import PREFIX
from mirror_sd.devices.worker import WorkerDevice
from mirror_sd.errors import Notice
from mirror_sd.models.target import Target
from mirror_sd.programs import Tensors, rope_tables, shape_of
from tests import tiny
from tests.devices.stand_ins import Emulated, Failing

BUCKET = Bucket(32, 32, 512)
PROMPT = list(range(3, 40))
TOKENS = 60


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@pytest.fixture(scope="module")
def draft():
    return tiny.draft()


@pytest.fixture(scope="module")
def folder(draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("device") / "programs"
    compile_draft(out, shape_of(draft), Tensors(draft), [BUCKET], "fp16")
    return out


@pytest.fixture
def on_device(draft, folder):
    """A draft on a device in a worker or in this process; closed at the end."""
    before = leftovers()
    with ExitStack() as stack:

        def make(change=lambda one: one, worker: bool = True, **settings) -> DeviceDraft:
            recipe = change(Emulated(folder, BUCKET.function))
            if worker:
                device = Checked(WorkerDevice(recipe, 1 << 20, 1 << 20, **settings))
            else:
                device = Checked(Inline(recipe()))
            stack.callback(device.close)
            plan, tables = plans.read(folder), rope_tables(draft)

            def context() -> HostedDraft:
                return HostedDraft(plan.shape, BUCKET, plan.parts, plan.calibration, tables, device)

            return DeviceDraft(draft, context, BUCKET.context, BUCKET.block)

        yield make
    gc.collect()
    assert leftovers() == before


def leftovers() -> tuple[set[str], set[int]]:
    """This process's shared memory, where it can be seen, and its children."""
    names = {file.name for file in Path("/dev/shm").glob(f"{PREFIX}-{os.getpid()}-*")}
    return names, {child.pid for child in multiprocessing.active_children()}


def answer(target, draft, length: int | None = None, mirror: bool = False):
    drafter = (MirroredDrafter if mirror else DFlashDrafter)(draft, target)
    session = Session(
        Target(target, drafter.taps),
        [drafter],
        GreedyAcceptance(),
        FixedLength(drafter.longest if length is None else length),
    )
    session.prefill(PROMPT)
    cycles = session.stream(TOKENS, until(frozenset()))
    said = [token for cycle in cycles for token in cycle.tokens]
    return said, session.statistics


def test_the_text_and_the_proposals_are_those_of_the_mlx_draft(target, draft, on_device):
    plain, _ = answer(target, draft, 0)
    by_mlx, mlx = answer(target, draft)
    by_device, device = answer(target, on_device())
    assert by_device == by_mlx == plain
    assert device.passes == pytest.approx(mlx.passes, abs=1)


FAILURES = [(True, how) for how in ("die", "hang", "refuse", "nan", "garbage")]
# What dies or hangs in this process takes it along: that is what workers are for.
FAILURES += [(False, how) for how in ("refuse", "nan", "garbage")]


@pytest.mark.parametrize(("worker", "how"), FAILURES)
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("calls", [0, 7])
def test_a_device_that_fails_in_mid_answer(target, draft, on_device, worker, how, mirror, calls):
    plain, _ = answer(target, draft, 0)
    settings = {"call_seconds": 5 if how != "hang" else 1} if worker else {}
    failing = on_device(lambda good: Failing(good, calls, how), worker, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said, _ = answer(target, failing, mirror=mirror)
        again, _ = answer(target, failing, mirror=mirror)
    assert said == again == plain
    notices = [w for w in caught if issubclass(w.category, Notice)]
    if how == "garbage":  # nothing tells finite nonsense from a bad draft, but the target
        assert not notices
    else:
        assert len(notices) == 1
        assert "the draft's device failed" in str(notices[0].message)
        assert failing.failed


def test_the_mlx_draft_takes_over_with_the_context(target, draft, on_device):
    """From the failure on, proposals are those of a draft that was in MLX all along."""
    by_mlx, mlx = answer(target, draft)
    failing = on_device(lambda good: Failing(good, 5, "refuse"))
    with pytest.warns(Notice):
        said, device = answer(target, failing)
    assert said == by_mlx
    assert device.passes == pytest.approx(mlx.passes, abs=1)
