"""Random drafts, and one of them compiled and driven beside its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mirror_sd.ane import reader
from mirror_sd.ane.calibration import Calibration
from mirror_sd.ane.emulator import Emulator, cosine
from mirror_sd.ane.hardware import IDEAL, Hardware
from mirror_sd.ane.host import HIDDEN_SCORE, HostedDraft
from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.plan import Plan
from mirror_sd.ane.reference import ReferenceDraft
from mirror_sd.ane.shapes import SLIDING, Bucket, DraftShape
from mirror_sd.bench.random_draft import RandomTensors, tables
from mirror_sd.devices.device import Inline

TINY = DraftShape(
    hidden=64, taps=2, heads=4, kv_heads=2, head_dim=16, intermediate=96, eps=1e-6, bias=False,
    sliding=(False, False), causal=(False, False),
)  # fmt: skip
BIASED = DraftShape(
    hidden=48, taps=3, heads=6, kv_heads=1, head_dim=8, intermediate=80, eps=1e-5, bias=True,
    sliding=(True, False), causal=(True, False), window=40,
)  # fmt: skip
SLIDING_ONLY = DraftShape(
    hidden=64, taps=1, heads=4, kv_heads=4, head_dim=16, intermediate=64, eps=1e-6, bias=False,
    sliding=(True, True), causal=(False, False), window=100,
)  # fmt: skip
BUCKET = Bucket(block=32, new=32, context=512)


def masks(shape: DraftShape, start: int, rows: int, ring: int) -> dict[str, np.ndarray]:
    """As `reference.masks`, with a full context bounded to the ring; written independently."""
    found = {}
    for kind in shape.masks:
        layer = shape.layer_of(kind)
        mask = np.zeros((rows, start + rows))
        for row in range(rows):
            for key in range(start + rows):
                in_block = key >= start
                hidden = in_block and shape.causal[layer] and key > start + row
                hidden |= not in_block and key < start - ring
                if kind == SLIDING and not in_block:
                    hidden |= start + row - key >= shape.window
                mask[row, key] = HIDDEN_SCORE if hidden else 0
        found[kind] = mask
    return found


def compiled(
    folder: Path,
    shape: DraftShape,
    scheme: str = "fp16",
    tensors: Mapping[str, np.ndarray] | None = None,
    buckets: tuple[Bucket, ...] = (BUCKET,),
    calibration: Calibration | None = None,
    **settings,
) -> Plan:
    tensors = RandomTensors(shape) if tensors is None else tensors
    return compile_draft(folder, shape, tensors, buckets, scheme, calibration, **settings)


def hosted(
    folder: Path, plan: Plan, bucket: Bucket = BUCKET, hardware: Hardware = IDEAL,
    host: Callable[..., HostedDraft] = HostedDraft,
) -> HostedDraft:  # fmt: skip
    emulators = [
        Emulator(reader.read(plan.package(folder, index))[bucket.function], hardware)
        for index in range(len(plan.parts))
    ]
    return host(
        plan.shape, bucket, plan.parts, plan.calibration, tables(plan.shape),
        Inline(lambda part, arrays: emulators[part](arrays)),
    )  # fmt: skip


def worst_cosine(
    draft: HostedDraft, tensors: Mapping[str, np.ndarray], cycles: int, rows: int = 8, seed: int = 0
) -> float:
    """Of several cycles with random features and blocks, against fp64."""
    shape, rng = draft.shape, np.random.default_rng(seed)
    reference, places = ReferenceDraft(shape, tensors), tables(shape)
    worst = 1.0
    for _ in range(cycles):
        count = int(rng.integers(1, draft.bucket.new + 1))
        features = rng.standard_normal((count, shape.taps * shape.hidden))
        block = rng.standard_normal((rows, shape.hidden))
        start = reference.keys[0].shape[1]
        reference.extend(features, *places(np.arange(start, start + count)))
        start += count
        seen = masks(shape, start, rows, draft.bucket.context)
        wanted = reference(block, *places(np.arange(start, start + rows)), seen).hidden
        worst = min(worst, cosine(draft(features, block), wanted))
    return worst
