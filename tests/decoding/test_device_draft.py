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
from mirror_sd.ane.parts import outputs
from mirror_sd.ane.shapes import Bucket
from mirror_sd.ane.surfaces import SurfaceExecutor
from mirror_sd.decoding.acceptance import GreedyAcceptance
from mirror_sd.decoding.device_draft import DeviceDraft
from mirror_sd.decoding.device_drafter import DeviceDrafter
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.length import FixedLength
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.decoding.output import until
from mirror_sd.decoding.session import Session
from mirror_sd.devices.device import Checked, Inline
from mirror_sd.devices.shared import PREFIX
from mirror_sd.devices.worker import WorkerDevice
from mirror_sd.errors import Notice
from mirror_sd.mlx_device import MlxRecipe
from mirror_sd.models.target import Target
from mirror_sd.programs import Tensors, rope_tables, shape_of
from tests import tiny
from tests.ane.apple import Model, stand_in
from tests.devices.stand_ins import Emulated, Failing

FEATURES, STREAMED = Bucket(32, 32, 512), Bucket(32, 0, 512)
PROMPT = list(range(3, 40))
TOKENS = 60


@pytest.fixture(scope="module")
def target():
    return tiny.target()


@pytest.fixture(scope="module")
def draft():
    return tiny.draft()


@pytest.fixture(scope="module")
def folders(draft, tmp_path_factory):
    """Programs that take features, and programs that take keys and values."""
    made = {}
    for bucket in (FEATURES, STREAMED):
        made[bucket] = tmp_path_factory.mktemp("device") / bucket.function
        compile_draft(made[bucket], shape_of(draft), Tensors(draft), [bucket], "fp16")
    return made


@pytest.fixture(scope="module")
def draft_files(tmp_path_factory):
    return str(tiny.write_draft(tmp_path_factory.mktemp("files") / "draft"))


@pytest.fixture(params=[FEATURES, STREAMED], ids=["features", "streamed"])
def bucket(request):
    return request.param


@pytest.fixture
def on_device(draft, folders, bucket, draft_files):
    """A draft on a device in a worker or in this process; closed at the end."""
    folder = folders[bucket]
    before = leftovers()
    with ExitStack() as stack:

        def make(change=lambda one: one, where="worker", call_seconds=5.0) -> DeviceDraft:
            good = Emulated(folder, bucket.function)
            recipe = change(MlxRecipe(draft_files, bucket) if "mlx" in where else good)
            plan, tables = plans.read(folder), rope_tables(draft)
            device = Checked(executor(where, recipe, plan, bucket, call_seconds))
            stack.callback(device.close)

            def context() -> HostedDraft:
                return HostedDraft(plan.shape, bucket, plan.parts, plan.calibration, tables, device)

            return DeviceDraft(
                draft, context, bucket.context, bucket.block, streamed=not bucket.new
            )

        yield make
    gc.collect()
    assert leftovers() == before


def executor(where: str, recipe, plan, bucket: Bucket, call_seconds: float):
    """Every kind that runs here; "surfaces" on a stand-in for Apple's frameworks."""
    if "worker" in where:
        return WorkerDevice(recipe, 1 << 20, 1 << 20, call_seconds=call_seconds)
    device = recipe()
    if "here" in where:
        return Inline(device)
    model = Model(lambda given: device(0, given))
    results = [outputs(plan.shape, bucket, part) for part in plan.parts]
    return SurfaceExecutor(stand_in(), [model], results, call_seconds)


def leftovers() -> tuple[set[str], set[int]]:
    """This process's shared memory, where it can be seen, and its children."""
    names = {file.name for file in Path("/dev/shm").glob(f"{PREFIX}-{os.getpid()}-*")}
    return names, {child.pid for child in multiprocessing.active_children()}


def answer(target, draft, length=None, mirror=False, prompt=PROMPT, window=None):
    if isinstance(draft, DeviceDraft):
        drafter = (MirroredDrafter if mirror else DeviceDrafter)(draft, target)
    else:
        drafter = DFlashDrafter(draft, target, window, 0)
    session = Session(
        Target(target, drafter.taps),
        [drafter],
        GreedyAcceptance(),
        FixedLength(drafter.longest if length is None else length),
    )
    session.prefill(prompt)
    cycles = session.stream(TOKENS, until(frozenset()))
    said = [token for cycle in cycles for token in cycle.tokens]
    return said, session.statistics


WHERE = ("worker", "here", "surfaces", "worker, mlx", "here, mlx")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("mirror", [False, True])
def test_the_text_and_the_proposals_are_those_of_the_mlx_draft(
    target, draft, on_device, where, mirror
):
    plain, _ = answer(target, draft, 0)
    by_mlx, mlx = answer(target, draft)
    by_device, device = answer(target, on_device(where=where), mirror=mirror)
    assert by_device == by_mlx == plain
    if not mirror:
        assert device.passes == pytest.approx(mlx.passes, abs=1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_prompt_longer_than_the_devices_context(on_device, fails):
    """What does not fit is skipped: the device, or the MLX draft after it, sees the latest rows."""
    long = {"max_position_embeddings": 2048}
    target, draft = tiny.target(**long), tiny.draft(**long)
    prompt = [(37 * i + i // 7) % 250 for i in range(700)]
    plain, _ = answer(target, draft, 0, prompt=prompt)
    _, mlx = answer(target, draft, prompt=prompt, window=512)
    device = on_device(lambda good: Failing(good, 5 if fails else 10**6, "refuse"), "here")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        said, by_device = answer(target, device, prompt=prompt)
    assert said == plain
    assert device.failed == fails
    assert by_device.passes == pytest.approx(mlx.passes, abs=1)


FAILURES = [("worker", how) for how in ("die", "hang", "refuse", "nan", "garbage")]
# What dies in this process takes it along, and so does what hangs, but for Core ML's own threads:
# that is what workers are for.
FAILURES += [("surfaces", how) for how in ("hang", "refuse", "nan", "garbage")]
FAILURES += [("here", how) for how in ("refuse", "nan", "garbage")]


FAILS = [(FEATURES, calls, *one) for calls in (0, 7) for one in FAILURES]
FAILS += [(STREAMED, calls, *FAILURES[0]) for calls in (0, 7)]
FAILS += [(STREAMED, 7, "worker, mlx", how) for how in ("die", "hang", "garbage")]
FAILS += [(FEATURES, 7, "here, mlx", how) for how in ("refuse", "nan")]
FAILS += [(STREAMED, 7, "surfaces", "hang"), (STREAMED, 7, "here", "nan")]


@pytest.mark.parametrize(("bucket", "calls", "where", "how"), FAILS, indirect=["bucket"])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_device_that_fails_in_mid_answer(target, draft, on_device, where, how, mirror, calls):
    plain, _ = answer(target, draft, 0)
    seconds = 1.0 if how == "hang" else 5.0
    failing = on_device(lambda good: Failing(good, calls, how), where, seconds)
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
