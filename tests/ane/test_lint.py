"""A bad program for every rule, and the drafts' own programs, which have no errors."""

from __future__ import annotations

import numpy as np
import pytest

from mirror_sd.ane import reader
from mirror_sd.ane.lint import Family, Level, lint
from mirror_sd.ane.reader import Function, Operation, TensorType
from mirror_sd.ane.rules import RULES

from .drafts import BIASED, BUCKET, TINY, compiled

HALF, SINGLE, INT = np.float16, np.float32, np.int32


def op(type, name, shape, dtype=HALF, blocks=0, **inputs):
    given = {k: v if isinstance(v, list) else [v] for k, v in inputs.items()}
    return Operation(type, given, (name,), (TensorType(shape, dtype),), blocks)


def program(*operations, constants=None, weight_bytes=0, **inputs):
    """Inputs are name=shape or name=TensorType; the last operation gives the output."""
    kinds = {k: v if isinstance(v, TensorType) else TensorType(v, HALF) for k, v in inputs.items()}
    outputs = operations[-1].outputs if operations else ()
    return Function("main", kinds, outputs, operations, constants or {}, weight_bytes)


X = (1, 64, 1, 32)
STATE = TensorType((1, 8, 16, 64), HALF, state=True)
BAD = {
    "dtype": program(op("add", "y", X, SINGLE, x="x", y="x"), x=X),
    "rank": program(op("reshape", "y", (1, 2, 2, 4, 4, 32), x="x"), x=X),
    "static": program(op("relu", "y", (1, -1, 1, 32), x="x"), x=X),
    "size": program(op("concat", "y", (1, 1, 20000, 32), values=["x"]), x=X),
    "columns": program(op("relu", "y", (1, 64, 1, 1), x="x"), x=(1, 64, 1, 1)),
    "projection": program(
        op("linear", "y", X, x="x", weight="w"), x=X, constants={"w": np.ones((64, 64), HALF)}
    ),
    "operation": program(op("gather", "y", X, x="x"), x=X),
    "topk": program(op("topk", "y", (1, 4, 1, 32), x="x"), x=X),
    "layout": program(
        op("transpose", "y", (1, 1, 32, 64), x="x", perm=np.array([0, 2, 3, 1], INT)), x=X
    ),
    "constants": program(
        op("add", "y", X, x="x", y="m"), x=X, constants={"m": np.array([-np.inf], HALF)}
    ),
    "squares": program(
        op("mul", "s", X, x="x", y="x"),
        op("reduce_mean", "y", (1, 1, 1, 32), x="s"),
        x=X,
    ),
    "blockwise": program(
        op("constexpr_blockwise_shift_scale", "w", (64, 64, 1, 1)),
        op("conv", "y", X, x="x", weight="w"),
        x=X,
    ),
    "weights-250MB": program(op("relu", "y", X, x="x"), x=X, weight_bytes=300_000_000),
    "weights-2GB": program(op("relu", "y", X, x="x"), x=X, weight_bytes=3_000_000_000),
    "offset": program(
        op("slice_by_index", "y", X, x="x", begin=np.array([0, 0, 0, 32], INT)),
        x=(1, 64, 1, 64),
    ),
    "state": program(
        op("read_state", "r", (1, 8, 16, 40), input="s"),
        op("relu", "y", X, x="r"),
        s=TensorType((1, 8, 16, 40), HALF, state=True),
    ),
    "update": program(op("slice_update", "y", X, x="x", begin="at"), x=X, at=(4,)),
    "stale": program(
        op("read_state", "r", STATE.shape, input="s"),
        op("slice_update", "a", STATE.shape, x="r", update="x", begin=np.zeros(4, INT)),
        Operation("write_state", {"input": ["s"], "data": ["a"]}, (), ()),
        op("slice_update", "b", STATE.shape, x="r", update="x", begin=np.ones(4, INT)),
        Operation("write_state", {"input": ["s"], "data": ["b"]}, (), ()),
        op("relu", "y", X, x="x"),
        s=STATE, x=X,
    ),
    "batches": program(
        op("matmul", "y", (1, 4, 32, 32), x="q", y="k"), q=(1, 4, 32, 64), k=(1, 1, 64, 32)
    ),
    "working-set": program(op("relu", "y", (1, 4096, 64, 64), x="x"), x=(1, 4096, 64, 64)),
    "silu": program(op("silu", "y", X, x="x"), x=X),
    "count": program(op("relu", "y", X, x="x"), x=X),
}  # fmt: skip


def found(function, family=Family.before_a16) -> dict[str, Level]:
    return {finding.rule: finding.level for finding in lint(function, family)}


def test_every_rule_has_a_bad_program_a_source_and_a_text():
    assert list(BAD) == [rule.id for rule in RULES]
    assert all(rule.source and rule.text for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_finds_its_bad_program_and_nothing_else_does(rule):
    expected = {rule.id: rule.level, "count": Level.info}
    assert found(BAD[rule.id]) == expected


def test_good_counterparts_pass():
    read_again = program(
        op("read_state", "r", STATE.shape, input="s"),
        Operation("write_state", {"input": ["s"], "data": ["r"]}, (), ()),
        op("read_state", "r2", STATE.shape, input="s"),
        Operation("write_state", {"input": ["s"], "data": ["r2"]}, (), ()),
        op("relu", "y", X, x="x"),
        s=STATE, x=X,
    )  # fmt: skip
    assert found(read_again) == {"count": Level.info}
    bounded = program(
        op("reduce_max", "m", (1, 1, 1, 32), x="x"),
        op("inverse", "i", (1, 1, 1, 32), x="m"),
        op("mul", "u", X, x="x", y="i"),
        op("mul", "s", X, x="u", y="u"),
        op("reduce_mean", "y", (1, 1, 1, 32), x="s"),
        x=X,
    )
    assert found(bounded) == {"count": Level.info}
    assert found(BAD["offset"], Family.a16) == {"count": Level.info}
    assert found(BAD["topk"], Family.a16) == {"count": Level.info}
    assert found(BAD["size"], Family.a16) == {"count": Level.info}


@pytest.mark.parametrize("shape", [TINY, BIASED], ids=["plain", "biased and sliding"])
@pytest.mark.parametrize("scheme", ["int8", "lut6", "fp16"])
def test_programs_of_drafts_have_no_errors(tmp_path, shape, scheme):
    plan = compiled(tmp_path / "p", shape, scheme)
    function = reader.read(plan.package(tmp_path / "p", 0))[BUCKET.function]
    assert found(function) == {"offset": Level.warning, "count": Level.info}
    assert found(function, Family.a16) == {"count": Level.info}
