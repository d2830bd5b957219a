"""What a compiled draft consists of, as its manifest.json says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, PairingError
from .calibration import Calibration
from .head import HeadPlan
from .parts import Part, Unit
from .shapes import Bucket, DraftShape

MANIFEST = "manifest.json"
LIMIT = 250e6  # bytes of weights per program: beyond that, loading was reported to fail
FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """A compiled draft.

    Attributes:
        shape: of the draft.
        buckets: one function each in every part; they differ in the cached context only.
        parts: programs, in order; part N lies in `part-N.mlpackage`.
        calibration: how tensors are held.
        scheme: how weights are stored.
        fingerprint: of the draft's weights, sha256.
        draft: what the draft is called.
        head: of the target, in `head-N.mlpackage`; None if it is not compiled.
        tools: versions of what compiled it.
        errors: of stored matrices, relative to the draft's.
    """

    shape: DraftShape
    buckets: tuple[Bucket, ...]
    parts: tuple[Part, ...]
    calibration: Calibration
    scheme: str
    fingerprint: str
    draft: str = ""
    head: HeadPlan | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)

    def package(self, folder: Path, part: int) -> Path:
        """The Core ML package of a part."""
        return folder / f"part-{part}.mlpackage"

    def head_package(self, folder: Path, part: int) -> Path:
        """The Core ML package of a part of the head."""
        return folder / f"head-{part}.mlpackage"

    def packages(self, folder: Path) -> list[Path]:
        """All of them."""
        heads = len(self.head.parts) if self.head is not None else 0
        return [
            *(self.package(folder, index) for index in range(len(self.parts))),
            *(self.head_package(folder, index) for index in range(heads)),
        ]

    def check_draft(self, fingerprint: str) -> None:
        """Refuse another draft.

        Raises:
            PairingError: the programs were compiled from other weights.
        """
        if self.fingerprint != fingerprint:
            raise PairingError(
                f"these programs were compiled from another draft ({self.draft}); compile this one "
                "with mirror-sd compile"
            )

    def bucket(self, context: int | None = None) -> Bucket:
        """The bucket with this cached context; None: the first.

        Raises:
            CheckpointError: there is none.
        """
        for bucket in self.buckets:
            if context in (None, bucket.context):
                return bucket
        widths = [bucket.context for bucket in self.buckets]
        raise CheckpointError(f"compiled for contexts of {widths} columns, not {context}")


def write(plan: Plan, folder: Path) -> None:
    """Write the manifest, with a hash of every file in the folder."""
    found = {
        str(file.relative_to(folder)): sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    content = {"format": FORMAT, **_plain(plan), "files": found}
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read(folder: Path, check: bool = True) -> Plan:
    """A compiled draft's plan.

    Args:
        folder: where it lies.
        check: compare every file with its hash.

    Raises:
        CheckpointError: it is missing, damaged, or of another version.
    """
    file = folder / MANIFEST
    if not file.exists():
        raise CheckpointError(
            f"{folder} holds no compiled draft (no {MANIFEST}); make one with mirror-sd compile"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} was compiled by another version (format {content['format']}, "
                f"this one reads {FORMAT}); compile it again"
            )
        if check:
            _check(folder, content["files"])
        return _parsed(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged ({error!r}); compile it again") from error


def sha256(file: Path) -> str:
    """Of a file's content."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _check(folder: Path, files: Mapping[str, str]) -> None:
    for name, expected in files.items():
        file = folder / name
        if not file.is_file() or sha256(file) != expected:
            raise CheckpointError(f"{file} is missing or damaged; compile the draft again")


def _plain(plan: Plan) -> dict[str, Any]:
    found = asdict(plan)
    for part in found["parts"]:
        for unit in part["units"]:
            channels = unit["channels"]
            unit["channels"] = [channels.start, channels.stop]
    return found


def _parsed(content: Mapping[str, Any]) -> Plan:
    return Plan(
        DraftShape(**_tuples(content["shape"])),
        tuple(Bucket(**bucket) for bucket in content["buckets"]),
        tuple(_part(part) for part in content["parts"]),
        Calibration(**_tuples(content["calibration"])),
        content["scheme"],
        content["fingerprint"],
        content["draft"],
        _head(content["head"]),
        content["tools"],
        content["errors"],
    )


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}


def _head(content: Mapping[str, Any] | None) -> HeadPlan | None:
    if content is None:
        return None
    parts = tuple(tuple((a, b) for a, b in part) for part in content["parts"])
    return HeadPlan(**{**content, "parts": parts})


def _part(content: Mapping[str, Any]) -> Part:
    units = tuple(
        Unit(unit["kind"], unit["layer"], range(*unit["channels"])) for unit in content["units"]
    )
    return Part(units, content["last"], content["enters_mlp"], content["leaves_mlp"])
