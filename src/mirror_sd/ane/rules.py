"""The rules of placement on the Neural Engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .lint import Family, Level, Program, Rule
from .reader import Operation

RULES: list[Rule] = []
Found = Iterator[tuple[str, str]]

SRAM = 32 << 20  # bytes
HARMFUL = {
    "cond": "control flow", "while_loop": "control flow", "cumsum": "no such operation there",
    "gather": "no such operation there", "gather_along_axis": "no such operation there",
    "gather_nd": "no such operation there", "scatter": "no way to write",
    "scatter_along_axis": "no way to write", "scatter_nd": "no way to write",
    "non_zero": "its size is not known beforehand", "range_1d": "its size is not known beforehand",
    "shape": "sizes at run time", "tile": "was seen to corrupt state; concat instead",
    "reduce_prod": "no such operation there", "argsort": "no such operation there",
    "einsum": "write it as matmul", "lstm": "no such operation there",
    "gru": "no such operation there", "rnn": "no such operation there",
    "scaled_dot_product_attention": "write it as matmul, softmax, matmul",
}  # fmt: skip
VIEWS = ("reshape", "slice_by_index", "concat", "transpose", "expand_dims", "squeeze", "identity")


def rule(
    id: str, level: Level, text: str, source: str
) -> Callable[[Callable[[Program], Found]], Callable[[Program], Found]]:
    """Register a rule."""

    def register(check: Callable[[Program], Found]) -> Callable[[Program], Found]:
        RULES.append(Rule(id, level, text, source, check))
        return check

    return register


def _name(operation: Operation) -> str:
    return operation.outputs[0] if operation.outputs else operation.type


def _results(program: Program) -> Iterator[tuple[str, Operation, tuple[int, ...], object]]:
    for operation in program.running:
        for name, kind in zip(operation.outputs, operation.types, strict=True):
            if kind is not None:
                yield name, operation, kind.shape, kind.dtype


@rule("dtype", Level.error, "Compute in fp16 only.", "Apple, ml-ane-transformers; ANEForge")
def _dtype(program: Program) -> Found:
    for name, kind in program.function.inputs.items():
        if kind.dtype is not np.float16 and len(kind.shape) > 1:
            yield name, f"input of type {np.dtype(kind.dtype)}"
    for name, operation, _, dtype in _results(program):
        if dtype in (np.float32, np.float64):
            yield name, f"{operation.type} gives {np.dtype(dtype)}"


@rule("rank", Level.error, "Tensors of rank 5 at most, better 4.", "coreai-models; FluidAudio #679")
def _rank(program: Program) -> Found:
    for name, _, shape, _ in _results(program):
        if len(shape) > 5:
            yield name, f"rank {len(shape)}"


@rule("static", Level.error, "All shapes are fixed.", "coreai-models: one function per shape")
def _static(program: Program) -> Found:
    for name, kind in program.function.inputs.items():
        if any(size < 1 for size in kind.shape):
            yield name, f"shape {kind.shape}"
    for name, _, shape, _ in _results(program):
        if any(size < 1 for size in shape):
            yield name, f"shape {shape}"


@rule(
    "size", Level.error,
    "Axes of 16384 at most before A16 and M4, 65536 since; channels of 65536.",
    "ANEForge, limits of targets; libane",
)  # fmt: skip
def _size(program: Program) -> Found:
    most = 65536 if program.family is Family.a16 else 16384
    for name, _, shape, _ in _results(program):
        for axis, size in enumerate(shape):
            if size > (65536 if axis == 1 and len(shape) == 4 else most):
                yield name, f"axis {axis} of {shape}"


@rule(
    "columns", Level.warning,
    "The last axis of inputs and outputs is a multiple of 32: rows of 64 bytes.",
    "Apple, Deploying Transformers on the Neural Engine; coreai-models",
)  # fmt: skip
def _columns(program: Program) -> Found:
    states = {name for name, kind in program.function.inputs.items() if kind.state}
    for name in (*program.function.inputs, *program.function.outputs):
        shape = None if name in states else program.shape(name)
        if shape and len(shape) >= 3 and shape[-1] % 32:
            yield name, f"{shape}: {shape[-1]} columns take the room of {-(-shape[-1] // 32) * 32}"


@rule(
    "projection", Level.warning, "Linear maps are 1x1 convolutions.",
    "Apple, ml-ane-transformers; Orion (about 3x)",
)  # fmt: skip
def _projection(program: Program) -> Found:
    for operation in program.running:
        constant = any(program.is_weight(program.given(operation, name)) for name in ("x", "y"))
        if operation.type == "linear" or (operation.type == "matmul" and constant):
            yield _name(operation), f"{operation.type} with a constant"


@rule(
    "operation", Level.error, "Nothing that the Neural Engine lacks.",
    "ANEForge, census of capabilities; hollance, neural-engine",
)  # fmt: skip
def _operation(program: Program) -> Found:
    for operation in program.running:
        if operation.type in HARMFUL:
            yield _name(operation), f"{operation.type}: {HARMFUL[operation.type]}"
        elif operation.blocks:
            yield _name(operation), f"{operation.type}: control flow"


@rule(
    "topk", Level.warning, "topk is refused by the first generations.", "ANEForge, census (M1)"
)  # fmt: skip
def _topk(program: Program) -> Found:
    for operation in program.running:
        if operation.type == "topk" and program.family is not Family.a16:
            yield _name(operation), "topk"


@rule(
    "layout", Level.warning, "No transpose or reshape moves the last axis.", "coreai-models"
)  # fmt: skip
def _layout(program: Program) -> Found:
    for operation in program.running:
        before = program.shape(program.given(operation, "x"))
        after = operation.types[0].shape if operation.types and operation.types[0] else None
        if operation.type == "transpose":
            order = program.constant(program.given(operation, "perm"))
            if order is not None and int(order[-1]) % len(order) != len(order) - 1:
                yield _name(operation), f"transpose by {[int(n) for n in order]}"
        elif operation.type == "reshape" and before and after and before[-1] != after[-1]:
            yield _name(operation), f"reshape of {before} to {after}"


@rule(
    "constants", Level.error, "No constant is infinite, or below -40000 as masks are.",
    "coreai-models; ANEForge: softmax gives NaN",
)  # fmt: skip
def _constants(program: Program) -> Found:
    for name, value in program.function.constants.items():
        if value.dtype.kind == "f" and value.size and not (np.min(value) >= -4e4):
            yield name, f"holds {np.min(value)}"
        elif value.dtype.kind == "f" and not np.isfinite(value).all():
            yield name, "is not finite"


@rule(
    "squares", Level.error, "No mean of squares of a tensor that is not bounded first.",
    "fp16 overflows beyond 255 squared; ANEMLL; found here by emulation",
)  # fmt: skip
def _squares(program: Program) -> Found:
    for operation in program.running:
        if operation.type not in ("reduce_mean", "reduce_sum"):
            continue
        squared = program.maker.get(str(program.given(operation, "x")))
        if squared is not None and _is_square(squared) and not _bounded(program, squared):
            yield _name(operation), f"squares of {program.given(squared, 'x')}"


def _is_square(operation: Operation) -> bool:
    same = operation.inputs.get("x") == operation.inputs.get("y")
    return operation.type == "square" or (operation.type == "mul" and same)


def _bounded(program: Program, squared: Operation) -> bool:
    """Whether what is squared was divided by something like its largest value."""
    source = program.maker.get(str(program.given(squared, "x")))
    while source is not None and source.type in VIEWS:
        source = program.maker.get(str(program.given(source, "x")))
    if source is None or source.type not in ("mul", "real_div"):
        return False
    makers = [program.maker.get(str(program.given(source, name))) for name in ("x", "y")]
    divisors = ("inverse", "reduce_max", "maximum")
    return any(maker is not None and maker.type in divisors for maker in makers)


@rule(
    "blockwise", Level.warning, "Scales by blocks may send small programs to the CPU.",
    "ane-book, chapter 3; ANEForge",
)  # fmt: skip
def _blockwise(program: Program) -> Found:
    for operation in program.function.operations:
        if operation.type == "constexpr_blockwise_shift_scale":
            yield _name(operation), operation.type


def _weights(least: float, most: float) -> Callable[[Program], Found]:
    def check(program: Program) -> Found:
        if least < program.function.weight_bytes <= most:
            yield program.function.name, f"{program.function.weight_bytes / 1e6:.0f} MB of weights"

    return check


for _id, _level, _least, _most, _text in (
    ("weights-250MB", Level.warning, 250e6, 2e9, "More than 250 MB of weights may not load."),
    ("weights-2GB", Level.error, 2e9, float("inf"), "More than 2 GB of weights never load."),
):
    _source = "ANEMLL, conversion guide; ane-book, law 4; ANEForge"
    RULES.append(Rule(_id, _level, _text, _source, _weights(_least, _most)))


@rule(
    "offset", Level.warning,
    "A slice that begins inside the last axis makes values beyond 4094 infinite before A16.",
    "ANEForge, numeric cliffs",
)  # fmt: skip
def _offset(program: Program) -> Found:
    for operation in program.running:
        begin = program.constant(program.given(operation, "begin"))
        if (
            operation.type == "slice_by_index"
            and begin is not None
            and np.ravel(begin)[-1] > 0
            and program.family is not Family.a16
        ):
            yield _name(operation), f"begins at column {int(np.ravel(begin)[-1])}"


@rule("state", Level.error, "States are a multiple of 32 wide.", "coremltools #2631")
def _state(program: Program) -> Found:
    for name, kind in program.function.inputs.items():
        if kind.state and kind.shape[-1] % 32:
            yield name, f"state of shape {kind.shape}"


@rule(
    "update", Level.warning, "No slice_update at a place that is computed.",
    "coreai-torch #6; Anemll #27",
)  # fmt: skip
def _update(program: Program) -> Found:
    for operation in program.running:
        computed = program.constant(program.given(operation, "begin")) is None
        if operation.type == "slice_update" and computed:
            yield _name(operation), "its place is computed at run time"


@rule(
    "stale", Level.error, "A state is not written from what was read before another write.",
    "found here: a pass of coremltools 9.0 merges repeated reads",
)  # fmt: skip
def _stale(program: Program) -> Found:
    writes: dict[str, list[int]] = {}
    for index, operation in enumerate(program.running):
        if operation.type != "write_state":
            continue
        state = str(program.given(operation, "input"))
        read = _read_behind(program, str(program.given(operation, "data")), state)
        if read is not None and any(write > read for write in writes.get(state, [])):
            yield state, "an earlier write is lost"
        writes.setdefault(state, []).append(index)


def _read_behind(program: Program, name: str, state: str) -> int | None:
    """Where the state was read that this value is made of."""
    waiting, seen = [name], set()
    while waiting:
        name = waiting.pop()
        maker = program.maker.get(name)
        if maker is None or name in seen:
            continue
        seen.add(name)
        if maker.type == "read_state" and str(program.given(maker, "input")) == state:
            return program.running.index(maker)
        waiting += [str(one) for values in maker.inputs.values() for one in values]
    return None


@rule(
    "batches", Level.warning, "Both sides of a matmul have the same batch: nothing is broadcast.",
    "the first mirror-sd's notes: grouped heads are rejected",
)  # fmt: skip
def _batches(program: Program) -> Found:
    for operation in program.running:
        if operation.type != "matmul":
            continue
        x, y = (program.shape(program.given(operation, name)) for name in ("x", "y"))
        if x and y and len(x) == len(y) and x[:-2] != y[:-2]:
            yield _name(operation), f"{x} by {y}"


@rule(
    "working-set", Level.warning, "An operation's tensors fit 32 MB.", "maderix, ANE; libane"
)  # fmt: skip
def _working_set(program: Program) -> Found:
    for operation in program.running:
        given = {str(one) for values in operation.inputs.values() for one in values}
        shapes = [program.shape(one) for one in given if not program.is_weight(one)]
        shapes += [kind.shape for kind in operation.types if kind is not None]
        size = sum(2 * int(np.prod(shape)) for shape in shapes if shape)
        if size > SRAM:
            yield _name(operation), f"{size / 2**20:.0f} MB"


@rule("silu", Level.info, "silu may run in fp32: x * sigmoid(x).", "coreai-models, common issues")
def _silu(program: Program) -> Found:
    for operation in program.running:
        if operation.type == "silu":
            yield _name(operation), "silu"


@rule("count", Level.info, "How many operations there are.", "ane-book: 3,059 ran; others say 30")
def _count(program: Program) -> Found:
    yield program.function.name, f"{len(program.running)} operations"
