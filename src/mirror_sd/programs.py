"""A loaded draft as the numpy tensors, shapes and tables that `ane` compiles and calls.

`models` knows no programs and `ane` no MLX: this is where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .ane.calibration import Calibration
from .ane.head import HeadPlan, Rows
from .ane.host import Tables
from .ane.plan import LIMIT, Plan
from .ane.shapes import Bucket, DraftShape
from .errors import UnsupportedError
from .models.draft import DFlashDraft
from .models.draft_config import SLIDING
from .models.draft_file import fingerprint
from .models.loading import Pair
from .models.target import TargetModel


def shape_of(draft: DFlashDraft) -> DraftShape:
    """A draft's shape.

    Raises:
        UnsupportedError: a DFlash 2 draft, which is not compiled yet.
    """
    config = draft.config
    if config.dflash2 is not None:
        raise UnsupportedError(
            "DFlash 2 drafts cannot be compiled: their dynamic convolutions and candidate selector "
            "have no program yet; they run on the GPU"
        )
    sliding = tuple(kind == SLIDING for kind in config.layer_types)
    return DraftShape(
        hidden=config.hidden_size,
        taps=len(config.taps),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        eps=config.rms_norm_eps,
        bias=config.attention_bias,
        sliding=sliding,
        causal=tuple(layer.self_attn.causal for layer in draft.layers),
        window=config.sliding_window,
    )


def compile_pair(
    pair: Pair,
    folder: Path,
    buckets: Sequence[Bucket],
    calibration: Calibration,
    scheme: str = "int8",
    limit: float = LIMIT,
    head: tuple[HeadPlan, Rows] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Plan:
    """Compile a pair's draft: `ane.package.compile_draft` with the pair's own tensors and name."""
    from .ane.package import compile_draft

    assert pair.draft is not None
    draft = pair.draft
    return compile_draft(
        folder, shape_of(draft.model), Tensors(draft.model), buckets, scheme, calibration,
        fingerprint(draft.name), draft.name, limit, head, progress,
    )  # fmt: skip


class Tensors(Mapping[str, np.ndarray]):
    """A draft's tensors in fp32 by their published names, one at a time; quantised ones are
    dequantised.
    """

    def __init__(self, draft: DFlashDraft):
        self._modules = dict(draft.named_modules())
        names = [name for name, _ in tree_flatten(draft.parameters())]
        self._names = [n for n in names if not n.endswith((".scales", ".biases"))]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        path, _, leaf = name.rpartition(".")
        module = self._modules[path]
        value = module[leaf]
        if isinstance(module, nn.QuantizedLinear) and leaf == "weight":
            value = mx.dequantize(
                value, module.scales, module.biases, module.group_size, module.bits
            )
        return np.array(value.astype(mx.float32))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def head_rows(target: TargetModel) -> Rows:
    """The target's head by tokens [start, stop), in fp32."""
    module = target.structure.head or target.structure.embedding

    def rows(start: int, stop: int) -> np.ndarray:
        found = target.head_rows(mx.arange(start, stop))
        if len(found) == 1:
            return np.array(found[0].astype(mx.float32))
        weight = mx.dequantize(
            *found, group_size=module.group_size, bits=module.bits, mode=module.mode
        )
        return np.array(weight.astype(mx.float32))

    return rows


def rope_tables(draft: DFlashDraft) -> Tables:
    """RoPE's cosines and sines at positions, by the draft's own frequencies, whatever scales them.

    Turning (1, 0) by an angle gives (cos, sin), times the factor that some kinds put on both; at
    position 1 the angle is the frequency. The tables themselves need no MLX: they are made in the
    thread that waits for the device.
    """
    rope, half = draft.layers[0].self_attn.rope, draft.config.head_dim // 2
    probe = mx.concatenate([mx.ones((1, 1, 1, half)), mx.zeros((1, 1, 1, half))], axis=-1)
    turned = np.array(rope(probe, offset=1)).astype(np.float64).reshape(2, half)
    frequencies, factor = np.arctan2(turned[1], turned[0]), np.hypot(turned[0], turned[1])

    def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        angles = positions[:, None] * frequencies
        return factor * np.cos(angles), factor * np.sin(angles)

    return tables
