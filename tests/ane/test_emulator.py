"""The emulator's arithmetic, operation by operation and limit by limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_sd.ane import reader, rounding
from mirror_sd.ane.emulator import Emulator, cosine
from mirror_sd.ane.hardware import EXACT, IDEAL, Hardware
from mirror_sd.ane.reader import _unpack
from mirror_sd.errors import UnsupportedError

from .drafts import BUCKET, TINY, compiled
from .test_lint import INT, op, program

X = (1, 4, 1, 32)


def run(function, hardware=IDEAL, **arrays):
    emulator = Emulator(function, hardware, ranges=True)
    return emulator({name: np.asarray(a) for name, a in arrays.items()})["y"], emulator


def full(value, shape=X):
    return np.full(shape, value, np.float16)


def conv(weight=None):
    """Of four channels; the identity."""
    weight = np.eye(4, dtype=np.float16)[..., None, None] if weight is None else weight
    return program(op("conv", "y", X, x="x", weight="w"), x=X, constants={"w": weight})


def int8_conv(codes, scales):
    return program(
        op(
            "constexpr_affine_dequantize", "w", (*codes.shape, 1, 1),
            quantized_data=codes[..., None, None], scale=scales,
            zero_point=np.array(0, np.int8), axis=np.array(0, INT),
        ),
        op("conv", "y", (1, len(codes), 1, 32), x="x", weight="w"),
        x=(1, codes.shape[1], 1, 32),
    )  # fmt: skip


def test_every_operation_rounds_to_half():
    function = program(op("add", "y", X, x="x", y="x2"), x=X, x2=X)
    got, _ = run(function, x=full(2048), x2=full(1))
    assert (got == 2048).all()  # 2049 is no fp16
    exact, _ = run(function, EXACT, x=full(2048), x2=full(1))
    assert (exact == 2049).all()


def test_overflow_becomes_infinite_and_is_counted():
    got, emulator = run(program(op("mul", "y", X, x="x", y="x"), x=X), x=full(300))
    assert np.isinf(got).all()
    assert emulator.ranges["y"].infinite == got.size


def test_ranges():
    x = full(0.5)
    x[0, 0, 0, 0] = 7
    x[0, 0, 0, 1] = 0
    _, emulator = run(program(op("identity", "y", X, x="x"), x=X), x=x)
    found = emulator.ranges["y"]
    assert (found.largest, found.smallest, found.infinite) == (7, 0.5, 0)


def test_a_result_that_is_not_as_declared():
    function = program(op("concat", "y", X, values=["x", "x"], axis=np.array(3, INT)), x=X)
    with pytest.raises(ValueError, match=r"concat y gives \(1, 4, 1, 64\), declared as"):
        run(function, x=full(1))


def test_a_package_whose_declarations_are_wrong(tmp_path):
    """Of a real program, each declared shape is checked."""
    plan = compiled(tmp_path / "p", TINY)
    function = reader.read(plan.package(tmp_path / "p", 0))[BUCKET.function]
    arrays = {n: np.zeros(kind.shape, np.float16) for n, kind in function.inputs.items()}
    Emulator(function)(arrays)
    checked = 0
    for index, operation in enumerate(function.operations):
        if operation.type.startswith("constexpr") or index % 20:
            continue
        wrong = replace(operation.types[0], shape=(*operation.types[0].shape[:-1], 31))
        operations = list(function.operations)
        operations[index] = replace(operation, types=(wrong,))
        with pytest.raises(ValueError, match="declared as"):
            Emulator(replace(function, operations=tuple(operations)))(arrays)
        checked += 1
    assert checked > 5


def test_an_operation_that_is_not_known():
    with pytest.raises(UnsupportedError, match="does not know the operation lstm"):
        Emulator(program(op("lstm", "y", X, x="x"), x=X))


def test_products_from_the_limit_on_are_infinite():
    limited = Hardware(product_limit=32752)
    weight = np.full((4, 4, 1, 1), 8000, np.float16)
    assert np.isinf(run(conv(weight=weight), limited, x=full(1.1))[0]).all()
    assert np.isfinite(run(conv(weight=weight), IDEAL, x=full(1.1))[0]).all()
    assert np.isfinite(run(conv(weight=weight), limited, x=full(1.0))[0]).all()


def test_activations_beyond_the_limit_break_int8_only():
    limited = Hardware(int8_limit=4094)
    int8 = int8_conv(np.eye(4, dtype=np.int8), np.full(4, 1, np.float16))
    assert not np.isfinite(run(int8, limited, x=full(4100))[0]).any()
    assert (run(int8, limited, x=full(4094))[0] == 4094).all()
    assert (run(conv(), limited, x=full(4100))[0] == 4100).all()


def test_scales_after_the_product():
    """Integers overflow where the scaled weights would not."""
    codes, scales = np.full((4, 4), 127, np.int8), np.full(4, 0.01, np.float16)
    function = int8_conv(codes, scales)
    after, _ = run(function, Hardware(scale_after=True), x=full(200))
    before, _ = run(function, IDEAL, x=full(200))
    assert np.isinf(after).all()
    assert np.isfinite(before).all()
    small = run(function, Hardware(scale_after=True), x=full(1))[0]
    assert np.allclose(small, 127 * 4 * 0.01, rtol=2e-3)


def test_slices_inside_the_last_axis():
    function = program(
        op(
            "slice_by_index", "y", (1, 4, 1, 16), x="x",
            begin=np.array([0, 0, 0, 16], INT), end=np.array([1, 4, 1, 32], INT),
        ),
        x=X,
    )  # fmt: skip
    assert np.isinf(run(function, Hardware(slice_limit=4094), x=full(5000))[0]).all()
    assert np.isfinite(run(function, IDEAL, x=full(5000))[0]).all()


def test_narrow_sums_lose_what_is_small():
    function = program(
        op("reduce_sum", "y", (1, 1, 1, 32), x="x", axes=np.array([1], INT),
           keep_dims=np.array(True)),
        x=(1, 4096, 1, 32),
    )  # fmt: skip
    x = full(0.25, (1, 4096, 1, 32))
    x[0, 0] = 2048
    wide, _ = run(function, IDEAL, x=x)
    narrow, _ = run(function, Hardware(narrow_reduce=True), x=x)
    assert wide[0, 0, 0, 0] == 3072
    assert abs(float(narrow[0, 0, 0, 0]) - 3072) > 0


def test_subnormals_are_flushed():
    function = program(op("identity", "y", X, x="x"), x=X)
    assert (run(function, Hardware(flush=True), x=full(1e-5))[0] == 0).all()
    assert (run(function, IDEAL, x=full(1e-5))[0] > 0).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 16, 64]))
def test_products_in_pieces(seed, terms):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((8, 100)).astype(np.float32)
    b = rng.standard_normal((100, 4)).astype(np.float32)
    got = rounding.product(a, b, terms)
    assert np.allclose(got, a @ b, atol=0.1)
    if terms:  # what was added up is fp16
        assert np.array_equal(got, got.astype(np.float16))


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([1, 2, 3, 4, 6]))
def test_codes_of_any_width_are_unpacked(seed, count, bits):
    codes = np.random.default_rng(seed).integers(0, 2**bits, count).astype(np.uint8)
    stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits].reshape(-1)
    packed = np.packbits(stream, bitorder="little")
    assert np.array_equal(_unpack(packed, bits, count), codes)


@pytest.mark.parametrize("groups", [(4, 1), (1, 2), (2, 2)])
def test_palettes_by_groups_of_either_axis(groups):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 16, (4, 4, 1, 1)).astype(np.uint8)
    tables = rng.standard_normal((*groups, 1, 1, 16, 1)).astype(np.float16)
    function = program(
        op("constexpr_lut_to_dense", "w", (4, 4, 1, 1), indices=indices, lut=tables),
        op("conv", "y", X, x="x", weight="w"),
        x=X,
    )
    x = np.zeros(X, np.float16)
    x[0, range(4), 0, range(4)] = 1  # columns of the weight
    got, _ = run(function, x=x)
    for row in range(4):
        for column in range(4):
            table = tables[row * groups[0] // 4, column * groups[1] // 4, 0, 0, :, 0]
            assert got[0, row, 0, column] == table[indices[row, column, 0, 0]]


def test_cosine():
    assert cosine([1, 2], [2, 4]) == pytest.approx(1)
    assert cosine([1, 0], [0, 1]) == 0
    assert cosine([0, 0], [0, 0]) == 1
    assert cosine([0, 0], [1, 0]) == 0
