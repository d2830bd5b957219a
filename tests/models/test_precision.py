from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mirror_sd.models import precision
from mirror_sd.models.dtype import Dtype
from tests import tiny

TOKENS = mx.array([[1, 2, 3]])


def quantized() -> nn.Module:
    model = tiny.model(tiny.config())
    model.set_dtype(mx.float16)
    nn.quantize(model, group_size=32, bits=4)
    return model


def dtypes(model: nn.Module) -> set[mx.Dtype]:
    return {a.dtype for _, a in tree_flatten(model.parameters())}


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(precision, "on_cpu", lambda: True)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(precision, "on_cpu", lambda: False)


def test_a_cpu_computes_in_float32_and_says_so(cpu):
    stored = quantized()
    exact = dict(stored.parameters()["lm_head"])
    wanted = mx.dequantize(
        exact["weight"],
        exact["scales"].astype(mx.float32),
        exact["biases"].astype(mx.float32),
        group_size=32,
        bits=4,
    )
    model, notice = precision.apply(stored, Dtype.auto)
    assert dtypes(model) == {mx.float32}
    assert mx.array_equal(model.lm_head.weight, wanted)
    assert notice is not None
    assert "4-bit + float16 weights are computed in float32" in notice


def test_a_cpu_with_little_memory_keeps_quantised_weights(cpu, monkeypatch):
    monkeypatch.setattr(precision, "available_memory", lambda: 1000)
    model, notice = precision.apply(quantized(), Dtype.auto)
    assert dtypes(model) == {mx.float32, mx.uint32}
    assert precision.describe(model) == "4-bit + float32"
    assert notice is not None
    assert "stay 4-bit" in notice


def test_a_cpu_with_little_memory_keeps_16_bit_weights(cpu, monkeypatch):
    monkeypatch.setattr(precision, "available_memory", lambda: 1000)
    model = tiny.model(tiny.config())
    model.set_dtype(mx.bfloat16)
    model, notice = precision.apply(model, Dtype.auto)
    assert dtypes(model) == {mx.bfloat16}
    assert notice is not None


def test_a_gpu_keeps_weights_as_stored_without_a_word(gpu):
    model, notice = precision.apply(quantized(), Dtype.auto)
    assert precision.describe(model) == "4-bit + float16"
    assert notice is None


@pytest.mark.parametrize("choice", [Dtype.float32, Dtype.bfloat16, Dtype.float16])
def test_a_chosen_format_is_used(choice, cpu):
    model, notice = precision.apply(quantized(), choice)
    assert precision.describe(model) == choice.value
    assert notice is None
    mx.eval(model(TOKENS))


@pytest.mark.parametrize("choice", list(Dtype))
def test_a_draft_never_computes_in_float16(choice, gpu):
    assert precision.compute_dtype(choice) in (mx.bfloat16, mx.float32)
