"""Building blocks of a draft's program, spelt the way the Neural Engine likes them.

Tensors lie as (1, C, 1, S) or, by heads, (1, heads, head_dim, S); every value is fp16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .quantize import F16, Half, Int8, Quantized
from .toolkit import mb, types

NORM_FLOOR = 1e-2  # of the largest value that a norm divides by: squares of less would vanish
MEAN_FLOOR = 6.2e-5  # of a mean of squares: fp16's smallest normal number; 1 / channels is more

Var = Any  # coremltools' handle of a value in a program
INDEX_TYPES = {4: types.np_uint4_dtype, 6: types.np_uint6_dtype}


def weight(quantized: Quantized, name: str) -> Var:
    """A matrix [out, in] as the (out, in, 1, 1) constant of a convolution. Functions of one
    program share those of one name.
    """
    found = _constant(quantized, name)
    if found.op.op_type == "const":
        found.op.weight_id = name
    for parameter, value in found.op.inputs.items():
        if value.op.op_type == "const" and value.val is not None and np.size(value.val) > 1:
            value.op.weight_id = f"{name}.{parameter}"
    return found


def _constant(quantized: Quantized, name: str) -> Var:
    if isinstance(quantized, Half):
        return mb.const(val=quantized.values[:, :, None, None], name=name)
    if isinstance(quantized, Int8):
        return mb.constexpr_affine_dequantize(
            quantized_data=quantized.codes[:, :, None, None],
            zero_point=np.int8(0),
            scale=quantized.scales,
            axis=np.int32(0),
            name=name,
        )
    indices = quantized.indices[:, :, None, None].astype(INDEX_TYPES[quantized.bits])
    tables = quantized.tables[:, None, None, None, :, None]
    return mb.constexpr_lut_to_dense(indices=indices, lut=tables, name=name)


def project(x: Var, quantized: Quantized, bias: np.ndarray | None, name: str) -> Var:
    """A linear map of the channels, as a 1x1 convolution."""
    extra = {} if bias is None else {"bias": bias.astype(F16)}
    kernel = weight(quantized, f"{name}_weight")
    return mb.conv(x=x, weight=kernel, pad_type="valid", strides=[1, 1], name=name, **extra)


def rms_norm(x: Var, gain: np.ndarray, eps: float, axis: int, name: str) -> Var:
    """RMSNorm over `axis` whose squares never overflow: the largest value is divided out first.

    With m = max|x|: x / sqrt(mean(x^2) + eps) = (x/m) / sqrt(mean((x/m)^2) + eps/m^2).
    """
    size = mb.abs(x=x, name=f"{name}_abs")
    size = mb.reduce_max(x=size, axes=[axis], keep_dims=True, name=f"{name}_max")
    size = mb.maximum(x=size, y=F16(NORM_FLOOR), name=f"{name}_floor")
    inverse = mb.inverse(x=size, epsilon=F16(0), name=f"{name}_inverse")
    unit = mb.mul(x=x, y=inverse, name=f"{name}_unit")
    square = mb.mul(x=unit, y=unit, name=f"{name}_square")
    mean = mb.reduce_mean(x=square, axes=[axis], keep_dims=True, name=f"{name}_mean")
    root = mb.mul(x=inverse, y=F16(eps**0.5), name=f"{name}_eps_root")
    least = mb.mul(x=root, y=root, name=f"{name}_eps")
    mean = mb.add(x=mean, y=least, name=f"{name}_mean_eps")
    mean = mb.maximum(x=mean, y=F16(MEAN_FLOOR), name=f"{name}_mean_floor")
    scale = mb.rsqrt(x=mean, epsilon=F16(0), name=f"{name}_rsqrt")
    normed = mb.mul(x=unit, y=scale, name=f"{name}_normed")
    shape = [1, 1, 1, 1]
    shape[axis] = len(gain)
    return mb.mul(x=normed, y=gain.astype(F16).reshape(shape), name=name)


def columns(x: Var, start: int, stop: int, axis: int, name: str) -> Var:
    """A slice along one axis."""
    begin, end = [0, 0, 0, 0], list(x.shape)
    begin[axis], end[axis] = start, stop
    return mb.slice_by_index(x=x, begin=begin, end=end, name=name)


def join(values: list[Var], axis: int, name: str) -> Var:
    """Concatenation; of one tensor, that tensor."""
    return values[0] if len(values) == 1 else mb.concat(values=values, axis=axis, name=name)


def rotate(x: Var, cos: Var, sin: Var, name: str) -> Var:
    """Split-half RoPE by tables whose sine has its first half negated: x * cos + swap(x) * sin."""
    half = x.shape[2] // 2
    low = columns(x, 0, half, 2, f"{name}_low")
    high = columns(x, half, 2 * half, 2, f"{name}_high")
    swapped = join([high, low], 2, f"{name}_swapped")
    straight = mb.mul(x=x, y=cos, name=f"{name}_cos")
    turned = mb.mul(x=swapped, y=sin, name=f"{name}_sin")
    return mb.add(x=straight, y=turned, name=name)


def by_heads(x: Var, heads: int, name: str) -> Var:
    """(1, heads * d, 1, S) to (1, heads, d, S)."""
    return mb.reshape(x=x, shape=[1, heads, x.shape[1] // heads, x.shape[3]], name=name)


def attention(queries: Var, keys: Var, values: Var, mask: Var, name: str) -> Var:
    """(1, heads * d, 1, S) from queries (1, heads, d, S) and (1, K/V heads, d, T) keys and values.

    Groups of query heads are folded onto the position axis: keys and values are never repeated.
    Queries carry the 1 / sqrt(d); `mask` is (1, 1, groups * S, T).
    """
    shared, width = keys.shape[1], queries.shape[3]
    groups = queries.shape[1] // shared
    parts = [
        columns(queries, g * shared, (g + 1) * shared, 1, f"{name}_group{g}") for g in range(groups)
    ]
    folded = join(parts, 3, f"{name}_folded")
    scores = mb.matmul(x=folded, y=keys, transpose_x=True, name=f"{name}_scores")
    scores = mb.add(x=scores, y=mask, name=f"{name}_masked")
    chances = mb.softmax(x=scores, axis=-1, name=f"{name}_softmax")
    mixed = mb.matmul(x=values, y=chances, transpose_y=True, name=f"{name}_mixed")
    parts = [
        columns(mixed, g * width, (g + 1) * width, 3, f"{name}_head{g}") for g in range(groups)
    ]
    flat = join(parts, 1, f"{name}_heads")
    return mb.reshape(x=flat, shape=[1, flat.shape[1] * flat.shape[2], 1, width], name=name)


def gated(gate: Var, up: Var, name: str) -> Var:
    """silu(gate) * up, with the silu spelt out: some compilers lower it through fp32."""
    sigmoid = mb.sigmoid(x=gate, name=f"{name}_sigmoid")
    silu = mb.mul(x=gate, y=sigmoid, name=f"{name}_silu")
    return mb.mul(x=silu, y=up, name=name)
