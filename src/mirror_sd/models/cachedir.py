"""The user's cache directory: where converted models lie."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import platformdirs

from ..errors import CacheDirError

ENV = "MIRROR_SD_CACHE"


def cache_dir() -> Path:
    """`$MIRROR_SD_CACHE`, else the platform's cache folder for mirror-sd. Need not exist."""
    override = os.environ.get(ENV)
    return Path(override).expanduser() if override else platformdirs.user_cache_path("mirror-sd")


def make_room(folder: Path, bytes_needed: int) -> None:
    """Create `folder` and make sure that its disk has `bytes_needed` free.

    Raises:
        CacheDirError: the folder cannot be written, or the disk is too full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CacheDirError(
            f"cannot write to the cache directory {folder}: {error.strerror}; "
            f"set {ENV} to another folder"
        ) from error
    if not os.access(folder, os.W_OK):
        raise CacheDirError(
            f"cannot write to the cache directory {folder}; set {ENV} to another folder"
        )
    if free < bytes_needed:
        raise CacheDirError(
            f"no disk space in the cache directory {folder}: {free / 1e6:.0f} MB free, "
            f"{bytes_needed / 1e6:.0f} MB needed; free some or set {ENV} to another disk"
        )
