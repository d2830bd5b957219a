"""A draft of `models` as the numpy tensors, shapes and tables that `ane` compiles and calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..ane.calibration import Calibration, choose
from ..ane.head import Rows
from ..ane.host import Tables
from ..ane.reference import ReferenceDraft, masks
from ..ane.shapes import DraftShape
from ..errors import UnsupportedError
from ..models.draft import DFlashDraft
from ..models.draft_config import SLIDING
from ..models.requests import Request
from ..models.target import TargetModel
from .prompts import builtin
from .recording import Cycle


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

    def fingerprint(self) -> str:
        """sha256 over names and values."""
        digest = hashlib.sha256()
        for name in sorted(self._names):
            digest.update(name.encode())
            digest.update(self[name].tobytes())
        return digest.hexdigest()


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
    """RoPE's cosines and sines at positions, read off the draft's own: of any kind of scaling.

    Turning (1, 0) by an angle gives (cos, sin), with the factor that some kinds put on both.
    """
    rope, half = draft.layers[0].self_attn.rope, draft.config.head_dim // 2
    probe = mx.concatenate([mx.ones((1, 1, 1, half)), mx.zeros((1, 1, 1, half))], axis=-1)

    def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start, stop = int(positions.min(initial=0)), int(positions.max(initial=0)) + 1
        turned = np.array(rope(mx.repeat(probe, stop - start, axis=2), offset=start))[0, 0]
        rows = turned[positions - start]
        return rows[:, :half], rows[:, half:]

    return tables


def calibration_requests() -> list[Request]:
    """A built-in prompt of each kind; `builtin(n)` begins at the other end."""
    last = {request.kind: request for request in builtin()}
    return list(last.values())


def calibrate(draft: DFlashDraft, cycles: list[Cycle]) -> tuple[Calibration, dict[str, float]]:
    """How a draft's tensors are to be held on text like this, and the peaks that this answers.

    Args:
        draft: whose they are.
        cycles: of real decoding.
    """
    shape, tensors, tables = shape_of(draft), dict(Tensors(draft)), rope_tables(draft)
    peaks = {"residual": 0.0, "inner": 0.0}
    features = np.zeros(shape.taps * shape.hidden, np.float32)
    reference = ReferenceDraft(shape, tensors, np.float32)
    for cycle in cycles:
        if cycle.starts:
            reference = ReferenceDraft(shape, tensors, np.float32)
        start = reference.keys[0].shape[1]
        end, rows = start + len(cycle.features), len(cycle.block)
        reference.extend(cycle.features, *tables(np.arange(start, end)))
        trace = reference(cycle.block, *tables(np.arange(end, end + rows)), masks(shape, end, rows))
        features = np.maximum(features, np.abs(cycle.features).max(axis=0, initial=0))
        peaks = {name: max(peak, trace.peaks[name]) for name, peak in peaks.items()}
    peaks_all = {**peaks, "features": float(features.max())}
    return choose(peaks, features), {name: round(peak, 1) for name, peak in peaks_all.items()}
