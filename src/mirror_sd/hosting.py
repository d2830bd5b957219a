"""A pair whose draft runs on a device of its own, by programs that `mirror-sd compile` made."""

from __future__ import annotations

import atexit
import math
import platform
import warnings
from pathlib import Path

from .ane import plan as plans
from .ane.devices import CoreMLRecipe, EmulatorRecipe
from .ane.host import HostedDraft
from .ane.parts import inputs, outputs
from .ane.shapes import Bucket
from .decoding.device_draft import DeviceDraft
from .devices.device import Checked
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
    """Open a compiled draft on a device, in a worker process.

    Args:
        draft: the MLX draft that the programs were compiled from.
        folder: where the programs lie.
        kind: auto is Core ML on a Mac, and elsewhere the emulator, with a notice.
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
    recipe = _recipe(folder, bucket, kind)
    given = max(_size(inputs(plan.shape, bucket, part)) for part in plan.parts)
    found = max(_size(outputs(plan.shape, bucket, part)) for part in plan.parts)
    device = Checked(WorkerDevice(recipe, given, found, load_seconds, call_seconds))
    atexit.register(device.close)
    tables = rope_tables(draft.model)
    return DeviceDraft(
        draft.model,
        lambda: HostedDraft(plan.shape, bucket, plan.parts, plan.calibration, tables, device),
        bucket.context,
        bucket.block,
    )


def _recipe(folder: Path, bucket: Bucket, kind: DeviceKind) -> CoreMLRecipe | EmulatorRecipe:
    mac = platform.system() == "Darwin"
    if kind is DeviceKind.coreml and not mac:
        raise UnsupportedError("Core ML is there on a Mac only; --device emulator runs anywhere")
    if kind is DeviceKind.coreml or (kind is DeviceKind.auto and mac):
        return CoreMLRecipe(folder, bucket.function, cache_dir() / "coreml")
    if kind is DeviceKind.auto:
        warnings.warn(
            "no Neural Engine here: the draft's programs are emulated, which is slow and only "
            "shows what they compute",
            Notice,
            stacklevel=3,
        )
    return EmulatorRecipe(folder, bucket.function)


def _size(shapes: dict[str, tuple[int, ...]]) -> int:
    """Bytes in fp16."""
    return sum(2 * math.prod(shape) for shape in shapes.values())
