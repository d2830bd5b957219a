"""A pair whose draft runs on a device of its own: by programs that `mirror-sd compile` made, or in
MLX on the CPU.
"""

from __future__ import annotations

import atexit
import math
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from .ane import plan as plans
from .ane.calibration import Calibration
from .ane.devices import CoreMLRecipe, EmulatorRecipe, open_surfaces
from .ane.host import HostedDraft
from .ane.parts import Part, inputs, outputs, split
from .ane.shapes import Bucket, DraftShape, aligned
from .ane.surfaces import frameworks
from .decoding.device_draft import DeviceDraft
from .devices.device import Checked, Device, Executor
from .devices.kind import DeviceKind
from .devices.worker import CALL_SECONDS, LOAD_SECONDS, WorkerDevice
from .errors import Notice, PairingError, UnsupportedError
from .mlx_device import MlxRecipe
from .models import precision
from .models.cachedir import cache_dir
from .models.draft_file import fingerprint
from .models.loading import Draft
from .programs import rope_tables, shape_of

MLX_CONTEXT = 1024  # columns; all of them are converted in every call


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
        recipe = _recipe(folder, bucket, kind)
        executor = _worker(recipe, plan.shape, plan.parts, bucket, load_seconds, call_seconds)
    return _on(executor, draft, plan.shape, plan.parts, bucket, plan.calibration)


def place_in_mlx(
    draft: Draft,
    context: int = MLX_CONTEXT,
    load_seconds: float = LOAD_SECONDS,
    call_seconds: float = CALL_SECONDS,
) -> DeviceDraft:
    """Open a draft in MLX on the CPU, in float32, in a worker process. It needs no programs; its
    context is streamed from the target's device.

    Args:
        draft: as it was loaded.
        context: width of the cached context: 512, 1024, 2048 or 4096.
        load_seconds: how long loading may take.
        call_seconds: how long a call may take.

    Raises:
        UnsupportedError: a DFlash 2 draft, or one with blocks of more than 64 positions.
        DeviceError: it does not load.
    """
    shape, size = shape_of(draft.model), draft.model.config.block_size
    bucket = Bucket(max(size, aligned(size)), 0, context)
    if precision.on_cpu():
        warnings.warn(
            "no GPU here: the draft in its worker and the target share the CPU, so drafting beside "
            "the verify gains nothing",
            Notice,
            stacklevel=4,
        )
    parts = split(shape, features=False)
    recipe = MlxRecipe(draft.name, bucket)
    executor = _worker(recipe, shape, parts, bucket, load_seconds, call_seconds)
    return _on(executor, draft, shape, parts, bucket, Calibration())


def _on(
    executor: Executor,
    draft: Draft,
    shape: DraftShape,
    parts: Sequence[Part],
    bucket: Bucket,
    calibration: Calibration,
) -> DeviceDraft:
    """A draft whose parts an executor runs."""
    device = Checked(executor)
    atexit.register(device.close)
    tables = rope_tables(draft.model)
    return DeviceDraft(
        draft.model,
        lambda: HostedDraft(shape, bucket, parts, calibration, tables, device),
        bucket.context,
        bucket.block,
        streamed=not bucket.new,
    )


def check_kind(kind: DeviceKind) -> None:
    """Whether this machine has such a device for programs.

    Raises:
        UnsupportedError: Core ML is asked for where there is none, or MLX, which runs none.
    """
    if kind is DeviceKind.mlx:
        raise UnsupportedError("mlx runs the draft itself and no programs: leave one of them out")
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


def _recipe(folder: Path, bucket: Bucket, kind: DeviceKind) -> EmulatorRecipe | CoreMLRecipe:
    if kind is DeviceKind.coreml_worker:
        return CoreMLRecipe(folder, bucket.function, _compiled())
    return EmulatorRecipe(folder, bucket.function)


def _worker(
    recipe: Callable[[], Device],
    shape: DraftShape,
    parts: Sequence[Part],
    bucket: Bucket,
    load: float,
    call: float,
) -> WorkerDevice:
    """The parts in a process of their own."""
    given = max(_size(inputs(shape, bucket, part)) for part in parts)
    found = max(_size(outputs(shape, bucket, part)) for part in parts)
    return WorkerDevice(recipe, given, found, load, call)


def _compiled() -> Path:
    return cache_dir() / "coreml"


def _size(shapes: dict[str, tuple[int, ...]]) -> int:
    """Bytes in fp16."""
    return sum(2 * math.prod(shape) for shape in shapes.values())
