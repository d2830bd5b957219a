"""Finding a checkpoint and reading it: a local folder or a Hugging Face repository."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from ..errors import CacheDirError, CheckpointError

DRAFT_FILES = ("*.json", "*.safetensors")
TARGET_FILES = (
    *("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken"),
    *("*.txt", "*.jsonl", "*.jinja"),
)


def locate(name: str, what: str, patterns: tuple[str, ...]) -> Path:
    """Folder of a checkpoint: `name` itself if it is one, else a snapshot of the hub's repository.

    Args:
        name: a path or a repository id, `owner/name`.
        what: "target" or "draft", for messages.
        patterns: files to fetch from the hub.

    Raises:
        CheckpointError: nothing there, or the hub cannot be reached.
        CacheDirError: the hub's cache has no room.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"the {what} {name} is a file; give the folder that holds it")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise CheckpointError(
            f"no {what} at {name}: give a model folder, a repository like "
            "mlx-community/Qwen3-8B-4bit, or demo"
        )
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise CheckpointError(f"no {what} at {name}: not a folder and no repository id") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"the {what} {name} is not cached and the Hugging Face hub cannot be reached; "
            "check the connection or give a local folder"
        ) from error
    except HfHubHTTPError as error:
        raise CheckpointError(
            f"the hub has no {what} {name} for you: {_first_line(error)}; "
            "check the name, or log in with `hf auth login` if it is private"
        ) from error
    except OSError as error:
        raise CacheDirError(f"cannot store the {what} {name}: {_first_line(error)}") from error


def is_cached(repo: str) -> bool:
    """Whether the hub's local cache holds the repository's config."""
    return isinstance(huggingface_hub.try_to_load_from_cache(repo, "config.json"), str)


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """config.json of a checkpoint.

    Raises:
        CheckpointError: missing or not a JSON object.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"the {what} folder {folder} has no config.json") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} is damaged ({_first_line(error)}); fetch the {what} again"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is damaged (no JSON object); fetch the {what} again")
    return config


def check_weights(folder: Path, what: str, pattern: str = "*.safetensors") -> list[Path]:
    """The weight files of a checkpoint, each as long as its own header says.

    MLX reads weights lazily, so a file cut short would fail in the middle of an answer.

    Raises:
        CheckpointError: none there, or one is damaged.
    """
    files = sorted(folder.glob(pattern))
    if not files:
        raise CheckpointError(f"the {what} folder {folder} has no {pattern} file")
    for file in files:
        reason = _damage(file)
        if reason:
            raise CheckpointError(f"{file} is damaged ({reason}); fetch the {what} again")
    return files


def _damage(file: Path) -> str | None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= size - 8:
            return "no safetensors header"
        try:
            header = json.loads(stream.read(length))
            ends = [row["data_offsets"][1] for key, row in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "unreadable safetensors header"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"{size} bytes, its header says {expected}"


def load_weights(folder: Path, what: str) -> dict[str, mx.array]:
    """All tensors of a checkpoint, lazily.

    Raises:
        CheckpointError: as `check_weights`.
    """
    weights: dict[str, mx.array] = {}
    for file in check_weights(folder, what):
        try:
            weights.update(mx.load(str(file)))
        except RuntimeError as error:
            raise CheckpointError(f"{file} cannot be read: {_first_line(error)}") from error
    return weights


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
