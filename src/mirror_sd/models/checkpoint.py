"""Finding a checkpoint and reading it: a local folder or a Hugging Face repository."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    SafetensorsParsingError,
)

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
    folder = _local(name, what)
    if folder is not None:
        return folder
    with _hub_errors(name, what):
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns)))


def look(name: str, what: str, weights: str = "*.safetensors") -> tuple[dict[str, Any], int]:
    """Config of a checkpoint and bytes of its weights, by the headers of its weight files: of a
    repository that is not cached, no weights are fetched.

    Args:
        name: as for `locate`.
        what: "target" or "draft", for messages.
        weights: pattern of its weight files.

    Raises:
        CheckpointError: nothing there, damaged, or the hub cannot be reached.
    """
    folder = _local(name, what) or _snapshot(name)
    if folder is not None and any(folder.glob(weights)):
        files = check_weights(folder, what, weights)
        return read_config(folder, what), sum(data_bytes(file) for file in files)
    with _hub_errors(name, what):
        config = read_config(
            Path(huggingface_hub.hf_hub_download(name, "config.json")).parent, what
        )
        try:
            found = huggingface_hub.get_safetensors_metadata(name)
        except (NotASafetensorsRepoError, SafetensorsParsingError) as error:
            raise CheckpointError(
                f"the {what} {name} has no readable safetensors header: {_first_line(error)}"
            ) from error
        except (HfHubHTTPError, HFValidationError):
            raise
        except Exception as error:  # of whichever HTTP library this release of the hub's uses
            raise ConnectionError(_first_line(error)) from error
    tensors = [t for file in found.files_metadata.values() for t in file.tensors.values()]
    return config, sum(t.data_offsets[1] - t.data_offsets[0] for t in tensors)


def _local(name: str, what: str) -> Path | None:
    """The folder that a name stands for, None for a repository."""
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
    return None


def _snapshot(repo: str) -> Path | None:
    """The folder of a repository in the hub's local cache, if it lies there."""
    config = huggingface_hub.try_to_load_from_cache(repo, "config.json")
    return Path(config).parent if isinstance(config, str) else None


@contextmanager
def _hub_errors(name: str, what: str) -> Iterator[None]:
    """Say in one line what is wrong with a repository, and what to do."""
    try:
        yield
    except HFValidationError as error:
        raise CheckpointError(f"no {what} at {name}: not a folder and no repository id") from error
    except (LocalEntryNotFoundError, ConnectionError) as error:
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
    """Whether the hub's local cache holds the repository's config and weights."""
    folder = _snapshot(repo)
    return folder is not None and any(folder.glob("*.safetensors"))


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


def data_bytes(file: Path) -> int:
    """Bytes of the tensors in a weight file, by its header.

    Raises:
        ValueError: it has none, or it cannot be read.
    """
    return _header(file)[1]


def fingerprint(folder: Path) -> str:
    """sha256 over the weight files: the same in whatever format they are loaded."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _header(file: Path) -> tuple[int, int]:
    """Bytes of a weight file's header and of its tensors."""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= file.stat().st_size - 8:
            raise ValueError("no safetensors header")
        try:
            header = json.loads(stream.read(length))
            ends = [row["data_offsets"][1] for key, row in header.items() if key != "__metadata__"]
            return 8 + length, int(max(ends, default=0))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError("unreadable safetensors header") from error


def _damage(file: Path) -> str | None:
    try:
        expected = sum(_header(file))
    except ValueError as error:
        return str(error)
    size = file.stat().st_size
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
