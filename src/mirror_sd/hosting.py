"""A pair whose draft runs on a device of its own, by programs that `mirror-sd compile` made."""

from __future__ import annotations

import atexit
import math
import platform
import warnings
from pathlib import Path

from .ane import plan as plans
from .ane.devices import CoreMLRecipe, EmulatorRecipe, open_surfaces
from .ane.host import HostedDraft
from .ane.parts import inputs, outputs
from .ane.plan import Plan
from .ane.shapes import Bucket
from .ane.surfaces import frameworks
from .decoding.device_draft import DeviceDraft
from .devices.device import Checked, Executor
from .devices.kind import DeviceKind
from .devices.worker import CALL_SECONDS, LOAD_SECONDS, WorkerDevice
from .errors import Notice, PairingError, UnsupportedError
from .models.cachedir import cache_dir
from .models.draft_file import fingerprint
from .models.loading import Draft
from .programs import rope_tables


def place(
    draft: Draft,
    folder: Path,
    kind: DeviceKind = DeviceKind.auto,
    context: int | None = None,
    load_seconds: float = LOAD_SECONDS,
    call_seconds: float = CALL_SECONDS,
) -> DeviceDraft:
    """Open a compiled draft on a device: in a worker process, or on a Mac in this one.

    Args:
        draft: the MLX draft that the programs were compiled from.
        folder: where the programs lie.
        kind: auto is Core ML on a Mac, and elsewhere the emulator, with a notice. Core ML runs in
            this process through pyobjc, and without that in a worker, with a notice.
        context: width of the cached context; None: the narrowest that was compiled, since
            coremltools copies and converts all of it in every call.
        load_seconds: how long loading may take.
        call_seconds: how long a call may take.

    Raises:
        CheckpointError: the programs are missing or damaged.
        PairingError: they were compiled from another draft, or for shorter blocks.
        UnsupportedError: Core ML is asked for where there is none.
        DeviceError: the device does not load.
    """
    plan = plans.read(folder)
    plan.check_draft(fingerprint(draft.name))
    bucket = plan.bucket(context or min(bucket.context for bucket in plan.buckets))
    size = draft.model.config.block_size
    if bucket.block < size:
        raise PairingError(
            f"these programs hold blocks of {bucket.block} positions, the draft's have {size}; "
            "compile it again without --block"
        )
    kind = _settle(kind)
    found = frameworks() if kind is DeviceKind.coreml else None
    executor: Executor
    if found is not None:
        executor = open_surfaces(found, folder, bucket, _compiled(), call_seconds)
    else:
        executor = _worker(plan, folder, bucket, kind, load_seconds, call_seconds)
    device = Checked(executor)
    atexit.register(device.close)
    tables = rope_tables(draft.model)
    return DeviceDraft(
        draft.model,
        lambda: HostedDraft(plan.shape, bucket, plan.parts, plan.calibration, tables, device),
        bucket.context,
        bucket.block,
        streamed=not bucket.new,
    )


def check_kind(kind: DeviceKind) -> None:
    """Whether this machine has such a device.

    Raises:
        UnsupportedError: Core ML is asked for where there is none.
    """
    mac = platform.system() == "Darwin"
    if kind in (DeviceKind.coreml, DeviceKind.coreml_worker) and not mac:
        raise UnsupportedError("Core ML is there on a Mac only; --device emulator runs anywhere")


def _settle(kind: DeviceKind) -> DeviceKind:
    """What is meant, and there."""
    check_kind(kind)
    if kind is DeviceKind.auto and platform.system() != "Darwin":
        warnings.warn(
            "no Neural Engine here: the draft's programs are emulated, which is slow and only "
            "shows what they compute",
            Notice,
            stacklevel=4,
        )
        return DeviceKind.emulator
    if kind is DeviceKind.auto:
        kind = DeviceKind.coreml
    if kind is DeviceKind.coreml and frameworks() is None:
        warnings.warn(
            "pyobjc is not installed: Core ML runs in a worker through coremltools, which copies "
            "every input; pip install 'mirror-sd[ane]' installs it",
            Notice,
            stacklevel=4,
        )
        return DeviceKind.coreml_worker
    return kind


def _worker(
    plan: Plan, folder: Path, bucket: Bucket, kind: DeviceKind, load: float, call: float
) -> WorkerDevice:
    """The programs in a process of their own."""
    recipe: EmulatorRecipe | CoreMLRecipe = EmulatorRecipe(folder, bucket.function)
    if kind is DeviceKind.coreml_worker:
        recipe = CoreMLRecipe(folder, bucket.function, _compiled())
    given = max(_size(inputs(plan.shape, bucket, part)) for part in plan.parts)
    found = max(_size(outputs(plan.shape, bucket, part)) for part in plan.parts)
    return WorkerDevice(recipe, given, found, load, call)


def _compiled() -> Path:
    return cache_dir() / "coreml"


def _size(shapes: dict[str, tuple[int, ...]]) -> int:
    """Bytes in fp16."""
    return sum(2 * math.prod(shape) for shape in shapes.values())
