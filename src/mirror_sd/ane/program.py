"""A part of a draft as a Core ML program (arXiv 2602.06036, in the layout of docs/ane.md).

Context features pass `fc` and `hidden_norm`, then each layer's K and V beside the block's normed
rows, in one convolution. Attention sees the ring, the new columns and the block. Only new context
columns come out: what enters the ring is the host's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from . import blocks
from .blocks import Var
from .head import FUNCTION, HeadPlan, Rows
from .parts import ATTENTION, FEATURES, MLP, Part, Unit, inputs, outputs, projections
from .quantize import Quantized, half, stored
from .shapes import Bucket, DraftShape
from .toolkit import ct, mb, mil, types
from .weights import DraftWeights

TARGET = ct.target.iOS18  # several functions in one package, and palettes by groups
Quantize = Callable[[str, np.ndarray], Quantized]


def build(
    shape: DraftShape,
    buckets: Sequence[Bucket],
    part: Part,
    weights: DraftWeights,
    quantize: Quantize,
) -> mil.Program:
    """A program with a function for every bucket; they share their weights.

    Args:
        shape: of the draft.
        buckets: widths of each function; the first is the default.
        part: what it computes.
        weights: read one matrix at a time.
        quantize: (name, matrix) -> what is stored.

    Returns:
        coremltools' program; in every function, layer N's output is called layer_N.
    """
    program = mil.Program()
    stored: dict[str, Quantized] = {}
    for bucket in buckets:
        names = inputs(shape, bucket, part).items()
        given = {n: mb.TensorSpec(shape=s, dtype=types.fp16) for n, s in names}
        with mil.Function(given, TARGET) as function:
            builder = _Builder(shape, bucket, part, weights, quantize, stored)
            function.set_outputs(builder.trace(function.inputs))
        program.add_function(bucket.function, function)
    program.default_function_name = buckets[0].function
    program.export_as_multifunction = True
    return program


def build_head(plan: HeadPlan, part: int, rows: Rows) -> mil.Program:
    """A program with the function `head`, for some shards of the vocabulary.

    Args:
        plan: how the head is divided.
        part: which of its programs.
        rows: (start, stop) -> the head's weights [stop - start, hidden] of these tokens.
    """
    program = mil.Program()
    specs = {n: mb.TensorSpec(shape=s, dtype=types.fp16) for n, s in plan.inputs().items()}
    with mil.Function(specs, TARGET) as function:
        hidden = function.inputs["hidden"]
        scores, places = [], []
        for start, stop in plan.parts[part]:
            kernel = stored(plan.scheme, "head", np.asarray(rows(start, stop), np.float32))
            logits = blocks.project(hidden, kernel, None, f"logits_{start}")
            best, where = mb.topk(x=logits, k=plan.top, axis=1, name=f"top_{start}")
            scores.append(best)
            places.append(where)
        function.set_outputs(
            [
                mb.identity(x=blocks.join(scores, 1, "all_scores"), name="scores"),
                mb.identity(x=blocks.join(places, 1, "all_places"), name="places"),
            ]
        )
    program.add_function(FUNCTION, function)
    program.default_function_name = FUNCTION
    program.export_as_multifunction = True
    return program


class _Builder:
    """Traces one function."""

    def __init__(
        self,
        shape: DraftShape,
        bucket: Bucket,
        part: Part,
        weights: DraftWeights,
        quantize: Quantize,
        stored: dict[str, Quantized],
    ):
        self.shape, self.bucket, self.part = shape, bucket, part
        self.weights, self.quantize, self.stored = weights, quantize, stored
        self.inputs: dict[str, Var] = {}
        self.masks: dict[str, Var] = {}
        self.fresh: dict[str, list[Var]] = {"keys": [], "values": []}
        self.context: Var | None = None
        self.hidden: Var | None = None
        self.sum: Var | None = None
        self.normed: Var | None = None

    def trace(self, given: dict[str, Var]) -> list[Var]:
        """The function's outputs."""
        self.inputs = given
        self.hidden, self.context = given.get("hidden"), given.get("context")
        self.sum = given.get("sum")
        for unit in self.part.units:
            self._unit(unit)
        found = {"hidden_out": self.hidden, "sum_out": self.sum, "context_out": self.context}
        if self.part.last:
            found["hidden_out"] = self._norm(self.hidden, "norm", "final_norm")
        for kind, columns in self.fresh.items():
            if columns:
                found[f"new_{kind}"] = blocks.join(columns, 1, f"all_new_{kind}")
        wanted = outputs(self.shape, self.bucket, self.part)
        return [mb.identity(x=found[name], name=name) for name in wanted]

    def _unit(self, unit: Unit) -> None:
        if unit.kind == FEATURES:
            self._features(unit)
        elif unit.kind == ATTENTION:
            self._attention(unit)
        else:
            self._mlp(unit)

    def _features(self, unit: Unit) -> None:
        projected = self._projected(unit, self.inputs["features"])
        eps = self.shape.eps * self.weights.calibration.features**2
        gain = self.weights.gain("hidden_norm")
        self.context = blocks.rms_norm(projected, gain, eps, 1, "hidden_norm")

    def _projected(self, unit: Unit, features: Var) -> Var:
        """The outliers, which come first, by fp16 weights; the rest by stored ones."""
        first = self.weights.outliers()
        if first is None:
            return self._project(features, unit, "fc")
        count, channels = first.shape[1], features.shape[1]
        outliers = blocks.columns(features, 0, count, 1, "features_outliers")
        outliers = blocks.project(outliers, half(first), None, "fc_outliers")
        others = blocks.columns(features, count, channels, 1, "features_rest")
        others = self._project(others, unit, "fc")
        return mb.add(x=others, y=outliers, name="fc_sum")

    def _attention(self, unit: Unit) -> None:
        layer, shape = unit.layer, self.shape
        at, name = f"layers.{layer}.self_attn", f"layer_{layer}_attention"
        normed = self._norm(self.hidden, f"layers.{layer}.input_layernorm", f"{name}_norm")
        rows = self._with_context(normed, name)
        queries = self._project(normed, unit, "q")
        queries = self._head_norm(queries, shape.heads, f"{at}.q_norm", f"{name}_q_norm")
        queries = blocks.rotate(
            queries, self.inputs["cos_q"], self.inputs["sin_q"], f"{name}_q_rope"
        )
        keys = self._project(rows, unit, "k")
        keys = self._head_norm(keys, shape.kv_heads, f"{at}.k_norm", f"{name}_k_norm")
        keys = blocks.rotate(keys, self.inputs["cos_k"], self.inputs["sin_k"], f"{name}_k_rope")
        values = self._project(rows, unit, "v")
        values = blocks.by_heads(values, shape.kv_heads, f"{name}_v_heads")
        out = blocks.attention(
            queries,
            self._with_ring(layer, "keys", keys, name),
            self._with_ring(layer, "values", values, name),
            self._mask(shape.mask(layer)),
            f"{name}_mix",
        )
        self.hidden = mb.add(x=self.hidden, y=self._project(out, unit, "o"), name=name)

    def _with_context(self, normed: Var, name: str) -> Var:
        """New context columns, which pass no input norm, then the block's rows."""
        rows = [normed] if self.context is None else [self.context, normed]
        return blocks.join(rows, 3, f"{name}_rows")

    def _with_ring(self, layer: int, kind: str, fresh: Var, name: str) -> Var:
        """The ring's columns, then the new ones, then the block's."""
        if self.bucket.new:
            self.fresh[kind].append(self._committed(fresh, f"{name}_new_{kind}"))
        heads, at = self.shape.kv_heads, self.part.layers.index(layer)
        ring = blocks.columns(
            self.inputs[kind], at * heads, (at + 1) * heads, 1, f"{name}_ring_{kind}"
        )
        return blocks.join([ring, fresh], 3, f"{name}_all_{kind}")

    def _committed(self, fresh: Var, name: str) -> Var:
        """Of new and block columns, those that the host may keep."""
        return blocks.columns(fresh, 0, self.bucket.new, 3, name)

    def _mask(self, kind: str) -> Var:
        """A mask for all groups of query heads; laid out once per kind."""
        if kind not in self.masks:
            mask = self.inputs[f"mask_{kind}"]
            self.masks[kind] = blocks.join([mask] * self.shape.groups, 2, f"mask_{kind}_groups")
        return self.masks[kind]

    def _mlp(self, unit: Unit) -> None:
        at, name = f"layers.{unit.layer}", f"layer_{unit.layer}"
        piece = f"{name}_mlp_{unit.channels.start}"
        if self.sum is None:
            self.sum = self.hidden
        if self.normed is None:
            self.normed = self._norm(self.hidden, f"{at}.post_attention_layernorm", f"{piece}_norm")
        gate, up = (self._project(self.normed, unit, which) for which in ("gate", "up"))
        inner = blocks.gated(gate, up, f"{piece}_inner")
        ends = unit.channels.stop == self.shape.intermediate
        down = self._project(inner, unit, "down")
        self.sum = mb.add(x=self.sum, y=down, name=name if ends else f"{piece}_sum")
        if ends:
            self.hidden, self.sum, self.normed = self.sum, None, None

    def _project(self, x: Var, unit: Unit, which: str) -> Var:
        """One of a unit's matrices; quantised once for all functions."""
        name, at = projections(unit)[which]
        if name not in self.stored:
            channels = unit.channels if unit.kind == MLP else None
            self.stored[name] = self.quantize(at, self.weights.matrix(at, channels))
        return blocks.project(x, self.stored[name], self.weights.bias(at), name)

    def _norm(self, x: Var, at: str, name: str) -> Var:
        """RMSNorm over all channels of the residual stream."""
        eps = self.shape.eps * self.weights.calibration.residual**2
        return blocks.rms_norm(x, self.weights.gain(at), eps, 1, name)

    def _head_norm(self, x: Var, heads: int, at: str, name: str) -> Var:
        """RMSNorm over each head's own channels."""
        split = blocks.by_heads(x, heads, f"{name}_heads")
        return blocks.rms_norm(split, self.weights.gain(at), self.shape.eps, 2, name)
