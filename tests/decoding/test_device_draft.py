"""Drafting on a device: the text is plain decoding's, and a device that fails is replaced."""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import pytest

from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.shapes import Bucket
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.device_draft import DeviceDraft
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.devices.device import Checked
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
    """A draft on a device in a worker; closed at the end."""
    with ExitStack() as stack:

        def make(change=lambda one: one, **settings) -> DeviceDraft:
            worker = WorkerDevice(
                change(Emulated(folder, BUCKET.function)), 1 << 22, 1 << 20, **settings
            )
            device = Checked(worker)
            stack.callback(device.close)
            from mirror_sd.ane import plan as plans

            plan, tables = plans.read(folder), rope_tables(draft)

            def context() -> HostedDraft:
                return HostedDraft(plan.shape, BUCKET, plan.parts, plan.calibration, tables, device)

            return DeviceDraft(draft, context, BUCKET.context)

        yield make


def answer(target, draft, length: int | None = None):
    drafter = DFlashDrafter(draft, target)
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


@pytest.mark.parametrize("how", ["die", "hang", "refuse", "nan", "garbage"])
@pytest.mark.parametrize("calls", [0, 7])
def test_a_device_that_fails_in_mid_answer(target, draft, on_device, how, calls):
    plain, _ = answer(target, draft, 0)
    failing = on_device(
        lambda good: Failing(good, calls, how), call_seconds=5 if how != "hang" else 1
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said, _ = answer(target, failing)
        again, _ = answer(target, failing)
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
