"""Wrong programs that once passed for right ones: on real activations, each is caught.

The right program passes the same check in the same way, so that each test shows the check biting.
"""

from __future__ import annotations

import numpy as np
import pytest

from mirror_sd.ane import blocks, reader
from mirror_sd.ane.emulator import Emulator, cosine
from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.program import _Builder
from mirror_sd.ane.quantize import Int8
from mirror_sd.ane.shapes import Bucket
from mirror_sd.ane.toolkit import mb
from mirror_sd.ane.weight_check import int8_steps
from mirror_sd.ane.weights import DraftWeights
from mirror_sd.bench import emulation
from mirror_sd.bench.calibration import calibrate
from mirror_sd.bench.emulated import Programs
from mirror_sd.programs import rope_tables, shape_of

BUCKET = Bucket(32, 32, 512)
LEAST = {"fp16": 0.9999, "int8": 0.999}


class Demo:
    """The demo draft, compiled and compared on what was recorded."""

    def __init__(self, folder, draft, tensors, cycles):
        self.folder, self.draft, self.tensors, self.cycles = folder, draft, tensors, cycles
        self.shape = shape_of(draft)
        self.calibration, _ = calibrate(draft, cycles)

    def compile(self, scheme: str) -> Programs:
        compile_draft(self.folder, self.shape, self.tensors, [BUCKET], scheme, self.calibration)
        return Programs(self.folder)

    def passes(self, scheme: str, programs: Programs | None = None) -> bool:
        """Whether every layer agrees with the MLX draft in every cycle."""
        found = emulation.compare(programs or self.compile(scheme), self.draft, self.cycles)
        floor = {"fp16": LEAST["fp16"], "int8": 0.998}[scheme]
        return all(a.cosine >= LEAST[scheme] and a.worst >= floor for a in found.values())


@pytest.fixture
def demo(tmp_path, demo_draft, demo_tensors, recorded):
    return Demo(tmp_path / "p", demo_draft, demo_tensors, recorded)


@pytest.mark.parametrize("scheme", LEAST)
def test_the_right_program_passes(demo, scheme):
    assert demo.passes(scheme)


def over_all_channels(self, x, heads, at, name):
    """QK-norm over all heads together: what cost the first attempt its acceptance."""
    gain = np.tile(self.weights.gain(at), heads)
    normed = blocks.rms_norm(x, gain, self.shape.eps, 1, name)
    return blocks.by_heads(normed, heads, f"{name}_heads")


def interleaved(x, cos, sin, name):
    """RoPE on pairs of neighbours, by tables made for halves."""
    shape = [1, x.shape[1], x.shape[2] // 2, 1, x.shape[3]]
    cuts = [
        mb.slice_by_index(
            x=x, begin=[0, 0, start, 0], end=list(x.shape), stride=[1, 1, 2, 1],
            name=f"{name}_{start}",
        )
        for start in (0, 1)
    ]  # fmt: skip
    even, odd = (mb.reshape(x=cut, shape=shape, name=f"{cut.name}_pair") for cut in cuts)
    swapped = mb.concat(values=[odd, even], axis=3, name=f"{name}_pairs")
    swapped = mb.reshape(x=swapped, shape=list(x.shape), name=f"{name}_swapped")
    straight = mb.mul(x=x, y=cos, name=f"{name}_cos")
    return mb.add(x=straight, y=mb.mul(x=swapped, y=sin, name=f"{name}_sin"), name=name)


def normed_context(self, normed, name):
    """The context passes the layer's input norm, as the block does."""
    gain = self.weights.gain(f"layers.{name.split('_')[1]}.input_layernorm")
    context = blocks.rms_norm(self.context, gain, self.shape.eps, 1, f"{name}_context")
    return blocks.join([context, normed], 3, f"{name}_rows")


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        (_Builder, "_head_norm", over_all_channels),
        (blocks, "rotate", interleaved),
        (_Builder, "_with_context", normed_context),
    ],
    ids=["norm over all channels", "interleaved rope", "normed context"],
)
def test_a_wrong_program_fails(demo, monkeypatch, where, name, mutant):
    monkeypatch.setattr(where, name, mutant)
    assert not demo.passes("fp16")


def test_a_position_that_is_off_by_one_fails(demo, monkeypatch):
    right = HostedDraft.__call__

    def late(self, features, block):
        start = self.ring.length + len(features) + 1
        return right(self, features, block, np.arange(start, start + len(block)))

    programs = demo.compile("fp16")
    assert demo.passes("fp16", programs)
    monkeypatch.setattr(HostedDraft, "__call__", late)
    assert not demo.passes("fp16", programs)


def test_block_keys_left_in_the_cache_fail(demo, monkeypatch):
    """A host that keeps the block's columns too; the program has to give them out for it."""
    programs = demo.compile("fp16")
    assert demo.passes("fp16", programs)
    monkeypatch.setattr(
        _Builder,
        "_committed",
        lambda self, fresh, name: blocks.columns(
            fresh, self.bucket.new, self.bucket.new + self.bucket.block, 3, name
        ),
    )
    demo.folder = demo.folder.with_name("blocks")
    leaking = demo.compile("fp16")
    right = HostedDraft.__call__

    def keeping(self, features, block):
        arrays = self._shared(
            features, block, np.arange(len(block)) + self.ring.length + len(features), None
        )
        given = {**arrays, **self._rings[0]}
        found = leaking(0, {n: given[n] for n in leaking.emulators[0].function.inputs})
        hidden = right(self, features, block)
        places = np.arange(self.ring.length, self.ring.length + len(block))
        for kind in ("keys", "values"):
            self._rings[0][kind][..., places % self.ring.width] = found[f"new_{kind}"][
                ..., : len(block)
            ]
        self.ring.positions[places % self.ring.width] = places
        return hidden

    monkeypatch.setattr(HostedDraft, "__call__", keeping)
    assert not demo.passes("fp16", programs)


def rounded_afterwards(weight):
    """int8 codes against scales that are rounded only then."""
    scales = np.abs(weight).max(axis=1) / 127
    codes = np.clip(np.rint(weight / scales[:, None]), -127, 127)
    return Int8(codes.astype(np.int8), scales.astype(np.float16))


def test_scales_that_are_rounded_afterwards_are_found(demo, monkeypatch):
    """Too small an error for a cosine, but not for the weights themselves."""
    weights = DraftWeights(demo.shape, demo.tensors, demo.calibration)

    def steps(programs):
        return int8_steps([e.function for e in programs.emulators], programs.plan.parts, weights)

    assert steps(demo.compile("int8")) <= 0.501
    monkeypatch.setitem(
        __import__("mirror_sd.ane.quantize", fromlist=["SCHEMES"]).SCHEMES, "int8",
        rounded_afterwards,
    )  # fmt: skip
    assert steps(demo.compile("int8")) > 0.52


def test_a_zero_point_that_is_off_fails(demo, monkeypatch):
    right = mb.constexpr_affine_dequantize
    monkeypatch.setattr(
        mb,
        "constexpr_affine_dequantize",
        lambda **given: right(**{**given, "zero_point": np.int8(1)}),
    )
    assert not demo.passes("int8")


def naive(x, gain, eps, axis, name):
    """RMSNorm as it is written: squares first."""
    square = mb.mul(x=x, y=x, name=f"{name}_square")
    mean = mb.reduce_mean(x=square, axes=[axis], keep_dims=True, name=f"{name}_mean")
    scale = mb.rsqrt(x=mean, epsilon=np.float16(eps), name=f"{name}_rsqrt")
    shape = [1, 1, 1, 1]
    shape[axis] = len(gain)
    normed = mb.mul(x=x, y=scale, name=f"{name}_normed")
    return mb.mul(x=normed, y=gain.astype(np.float16).reshape(shape), name=name)


@pytest.mark.parametrize("case", ["300", "one outlier of 8000"])
def test_a_naive_norm_fails_where_the_safe_one_holds(tmp_path, monkeypatch, recorded, case):
    """On a recorded row, brought to the size that other models' activations have."""
    row = next(cycle.features[-1] for cycle in recorded if len(cycle.features))[:576]
    row = row / np.abs(row).max()
    x = row * 300 if case == "300" else np.where(np.arange(576) == 7, 8000, row * 20)
    gain = np.linspace(0.5, 1.5, 576, dtype=np.float32)
    wanted = x / np.sqrt((x * x).mean() + 1e-6) * gain

    def normed(norm) -> float:
        emulator = norm_alone(norm, gain, tmp_path / norm.__name__)
        got = emulator({"x": np.repeat(x[None, :, None, None], 32, axis=3)})["y"]
        return cosine(got[0, :, 0, 0], wanted)

    assert normed(blocks.rms_norm) > 0.9999
    assert not normed(naive) > 0.9


def norm_alone(norm, gain, path) -> Emulator:
    from mirror_sd.ane.toolkit import ct, types

    @mb.program(
        input_specs=[mb.TensorSpec((1, len(gain), 1, 32), types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x):
        return mb.identity(x=norm(x, gain, 1e-6, 1, "norm"), name="y")

    program.skip_all_passes = True
    ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
        pass_pipeline=ct.PassPipeline.EMPTY, skip_model_load=True,
    ).save(str(path.with_suffix(".mlpackage")))  # fmt: skip
    return Emulator(reader.read(path.with_suffix(".mlpackage"))["main"])


def test_tables_are_those_of_the_draft(demo_draft):
    places = np.array([0, 5, 4000])
    cos, sin = rope_tables(demo_draft)(places)
    theta, size = demo_draft.config.rope_theta, demo_draft.config.head_dim
    angles = places[:, None] * theta ** (-np.arange(0, size, 2) / size)
    assert np.abs(cos - np.cos(angles)).max() < 1e-3
    assert np.abs(sin - np.sin(angles)).max() < 1e-3
