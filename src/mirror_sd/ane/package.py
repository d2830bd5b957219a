"""Builds a draft's programs and writes them as Core ML packages.

Packages are a function of their input: coremltools puts random ids and a date into them, which are
replaced, and writes maps in any order, which is sorted.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import CacheDirError, CheckpointError, UnsupportedError
from . import plan as plans
from .calibration import Calibration
from .head import HeadPlan, Rows
from .parts import Part, split
from .plan import LIMIT, Plan
from .quantize import BYTES_PER_PARAMETER, SCHEMES, Quantized, error, stored
from .shapes import Bucket, DraftShape
from .weights import DraftWeights

if TYPE_CHECKING:
    from .toolkit import mil

NAMESPACE = uuid.UUID("b6d1f2a4-6c0e-4f43-9d50-0c7ef1b6a9d7")
UNSTEADY = ("com.github.apple.coremltools.conversion_date",)

Progress = Callable[[int, int, str], None]


def compile_draft(
    folder: Path,
    shape: DraftShape,
    tensors: Mapping[str, np.ndarray],
    buckets: Sequence[Bucket],
    scheme: str = "int8",
    calibration: Calibration | None = None,
    fingerprint: str = "",
    draft: str = "",
    limit: float = LIMIT,
    head: tuple[HeadPlan, Rows] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compile a draft into `folder`, which must not exist or hold a compiled draft.

    Args:
        folder: gets a package per part and a manifest.
        shape: of the draft.
        tensors: published name -> array; read one at a time.
        buckets: widths; one function each.
        scheme: of storing weights: int8, lut6, lut4 or fp16.
        calibration: how tensors are held; None: as they are.
        fingerprint: of the draft's weights.
        draft: its name, for the manifest.
        limit: bytes of weights per program.
        head: the target's head, too: how it is divided, and its weights.
        progress: is told (parts done, of how many, what is done now).

    Raises:
        UnsupportedError: coremltools is missing, or there is no such scheme.
        CheckpointError: a tensor is missing, or the folder holds something else.
        CacheDirError: it cannot be written.
    """
    if scheme not in SCHEMES:
        raise UnsupportedError(f"weights cannot be stored as {scheme}; choose from {[*SCHEMES]}")
    _check_folder(folder)
    tell = progress or (lambda done, of, what: None)
    features = any(bucket.new for bucket in buckets)
    parts = tuple(split(shape, features, BYTES_PER_PARAMETER[scheme], limit))
    calibration = calibration or Calibration()
    if scheme == "fp16":
        calibration = replace(calibration, outliers=())
    weights = DraftWeights(shape, tensors, calibration)
    errors: dict[str, float] = {}

    def quantize(name: str, matrix: np.ndarray) -> Quantized:
        found = stored(scheme, name, matrix)
        errors[name] = round(max(error(matrix, found), errors.get(name, 0.0)), 6)
        return found

    jobs: list[tuple[str, Callable[[], mil.Program]]] = [
        (f"part-{index}", partial(_part, shape, buckets, part, weights, quantize))
        for index, part in enumerate(parts)
    ]
    if head is not None:
        jobs += [
            (f"head-{index}", partial(_head, *head, index)) for index in range(len(head[0].parts))
        ]
    with _replacing(folder) as made:
        for done, (name, build) in enumerate(jobs):
            tell(done, len(jobs), name)
            _save(build, made / f"{name}.mlpackage")
        plan = Plan(
            shape, tuple(buckets), parts, calibration, scheme, fingerprint, draft,
            None if head is None else head[0], _tools(), errors,
        )  # fmt: skip
        plans.write(plan, made)
    tell(len(jobs), len(jobs), "done")
    return plan


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to write to that takes the place of another one if all goes well."""
    made = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        yield made
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    except OSError as failure:
        raise CacheDirError(f"{folder} cannot be written: {failure}") from failure
    except KeyError as missing:
        raise CheckpointError(f"the draft has no tensor {missing}") from missing
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not (folder / plans.MANIFEST).exists():
        raise CheckpointError(
            f"{folder} exists and is not a compiled draft; choose another place for --out"
        )


def _part(
    shape: DraftShape,
    buckets: Sequence[Bucket],
    part: Part,
    weights: DraftWeights,
    quantize: Callable[[str, np.ndarray], Quantized],
) -> mil.Program:
    from . import program

    return program.build(shape, buckets, part, weights, quantize)


def _head(plan: HeadPlan, rows: Rows, part: int) -> mil.Program:
    from . import program

    return program.build_head(plan, part, rows)


def _save(build: Callable[[], mil.Program], path: Path) -> None:
    try:
        from .toolkit import ct
    except ImportError as missing:
        raise UnsupportedError(
            f"compiling needs coremltools ({missing}); install it with: "
            "pip install 'mirror-sd[ane]'"
        ) from missing
    built = build()
    built.skip_all_passes = True  # two of its passes are wrong for such programs (docs/ane.md)
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch, "raw.mlpackage")
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars of passes that do nothing
            ct.convert(
                built,
                convert_to="mlprogram",
                minimum_deployment_target=ct.target.iOS18,
                compute_precision=ct.precision.FLOAT16,
                pass_pipeline=ct.PassPipeline.EMPTY,
                skip_model_load=True,
            ).save(str(raw))
        _steady(raw)
        shutil.move(raw, path)


def _steady(package: Path) -> None:
    """Make a package a function of its content."""
    from .toolkit import Model_pb2

    file = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = Model_pb2.Model()
    model.ParseFromString(file.read_bytes())
    for key in UNSTEADY:
        model.description.metadata.userDefined.pop(key, None)
    content = model.SerializeToString(deterministic=True)
    file.write_bytes(content)
    manifest = package / "Manifest.json"
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    root = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
    items, root_id = {}, ""
    for entry in sorted(entries["itemInfoEntries"].values(), key=lambda entry: entry["path"]):
        name = str(uuid.uuid5(NAMESPACE, entry["path"])).upper()
        items[name] = entry
        if entry["path"] == root:
            root_id = name
    entries |= {"itemInfoEntries": items, "rootModelIdentifier": root_id}
    manifest.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _tools() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("mirror-sd", "coremltools", "numpy")}
