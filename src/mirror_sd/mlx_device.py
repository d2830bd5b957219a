"""The draft in MLX as a device: what its programs would compute, by its own modules.

It takes and gives what a compiled draft's only program does (`ane.parts`), so all that is built
around programs works with it: a worker, branches under a mask, context streamed from the verify.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .ane.parts import inputs, split
from .ane.shapes import Bucket
from .devices.device import Arrays
from .models import draft_file, precision
from .models.checkpoint import read_config
from .models.draft import DFlashDraft, DraftAttention
from .models.draft_config import parse
from .models.dtype import Dtype
from .programs import shape_of


class MlxDevice:
    """Runs the one part of an undivided draft with MLX, in the thread that calls.

    Args:
        draft: whose modules compute, in its own format.
        bucket: widths of the program that it stands for.
        device: of MLX.
    """

    def __init__(self, draft: DFlashDraft, bucket: Bucket, device: mx.Device | None = None):
        self._draft, self._bucket = draft, bucket
        self._device = device or mx.default_device()
        self.shape = shape_of(draft)
        (self.part,) = split(self.shape, features=bool(bucket.new))
        self._names = inputs(self.shape, bucket, self.part)
        mx.eval(draft.parameters())

    def __call__(self, part: int, arrays: Arrays) -> Arrays:
        """Outputs by name, in fp16."""
        with mx.stream(self._device):
            dtype = self._draft.fc_dtype
            given = {name: mx.array(arrays[name]).astype(dtype) for name in self._names}
            found = self._pass(given)
            mx.eval(found)
            return {name: np.array(values) for name, values in found.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _pass(self, given: dict[str, mx.array]) -> dict[str, mx.array]:
        draft, x = self._draft, _rows(given["hidden"])
        context = draft.project(_rows(given["features"])) if self._bucket.new else None
        fresh: dict[str, list[mx.array]] = {"keys": [], "values": []}
        for index, layer in enumerate(draft.layers):
            normed = layer.input_layernorm(x)
            out, keys, values = self._attention(layer.self_attn, index, normed, context, given)
            fresh["keys"].append(keys)
            fresh["values"].append(values)
            x = x + layer.self_attn.o_proj(out)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        found = {"hidden_out": draft.norm(x).transpose(0, 2, 1)[:, :, None]}
        if self._bucket.new:
            for kind, rows in fresh.items():
                new = mx.concatenate(rows, axis=1)[:, :, : self._bucket.new]
                found[f"new_{kind}"] = new.swapaxes(2, 3)
        return {name: values.astype(mx.float16) for name, values in found.items()}

    def _attention(
        self,
        layer: DraftAttention,
        index: int,
        normed: mx.array,
        context: mx.array | None,
        given: dict[str, mx.array],
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Before `o_proj`: what the block [1, b, H] attends to; and the keys and values that are
        not in the ring, of new columns and the block.
        """
        rows = normed if context is None else mx.concatenate([context, normed], axis=1)
        queries = layer.q_norm(_heads(layer.q_proj(normed), layer.num_heads))
        queries = _rotate(queries, given["cos_q"], given["sin_q"])
        keys = layer.k_norm(_heads(layer.k_proj(rows), layer.num_kv_heads))
        keys = _rotate(keys, given["cos_k"], given["sin_k"])
        values = _heads(layer.v_proj(rows), layer.num_kv_heads)
        own = slice(index * layer.num_kv_heads, (index + 1) * layer.num_kv_heads)
        ring = [given[kind][:, own].swapaxes(2, 3) for kind in ("keys", "values")]
        out = mx.fast.scaled_dot_product_attention(
            queries,
            mx.concatenate([ring[0], keys], axis=2),
            mx.concatenate([ring[1], values], axis=2),
            scale=layer.scale,
            mask=given[f"mask_{self.shape.mask(index)}"],
        )
        return out.transpose(0, 2, 1, 3).reshape(*normed.shape[:2], -1), keys, values


@dataclass(frozen=True)
class MlxRecipe:
    """Makes an `MlxDevice` on the CPU, in float32, from the draft's files.

    Attributes:
        name: of the draft: "demo", a folder, or a repository.
        bucket: widths of the program that it stands for.
    """

    name: str
    bucket: Bucket

    def __call__(self) -> MlxDevice:
        """Load the draft."""
        folder = draft_file.draft_folder(self.name)
        raw = read_config(folder, "draft")
        with mx.stream(mx.cpu):  # the GPU is the target's
            draft = draft_file.read_model(self.name, parse(raw, str(folder)), raw)
            draft, _ = precision.apply(draft, Dtype.float32)
            return MlxDevice(draft, self.bucket, mx.cpu)


def _rows(columns: mx.array) -> mx.array:
    """[1, C, 1, n] to [1, n, C]."""
    return columns[:, :, 0].swapaxes(1, 2)


def _heads(x: mx.array, heads: int) -> mx.array:
    """[1, n, heads * d] to [1, heads, n, d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Split-half RoPE of [1, heads, n, d] by tables [1, 1, d, n]; the sine brings its signs."""
    low, high = mx.split(x, 2, axis=-1)
    return x * cos.swapaxes(2, 3) + mx.concatenate([high, low], axis=-1) * sin.swapaxes(2, 3)
