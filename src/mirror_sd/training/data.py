"""Training text on disk: token shards of prompts with the target's own answers.

A shard is an .npz file with `ids` (all sequences end to end), `length` and `prompt` (tokens of a
sequence, and of its prompt) and `kind`. `train-*.npz` is learnt from, `held-*.npz` never is:
prompts are split, not positions.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CheckpointError

SPLITS = ("train", "held")


@dataclass(frozen=True)
class Text:
    """A prompt and its answer.

    Attributes:
        ids: [n] token ids of both.
        prompt: how many of them are the prompt's.
        kind: what sort of prompt, for reports.
    """

    ids: np.ndarray
    prompt: int
    kind: str

    def __len__(self) -> int:
        return len(self.ids)


def write_shard(file: Path, texts: Sequence[Text]) -> None:
    """Write a shard; it appears whole or not at all."""
    ids = np.concatenate([text.ids for text in texts]) if texts else np.zeros(0, np.int64)
    width = np.uint16 if ids.max(initial=0) < 1 << 16 else np.uint32
    scratch = file.with_suffix(".new")
    with scratch.open("wb") as stream:
        np.savez_compressed(
            stream,
            ids=ids.astype(width),
            length=np.array([len(text) for text in texts], np.int32),
            prompt=np.array([text.prompt for text in texts], np.int32),
            kind=np.array([text.kind for text in texts]),
        )
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(file)


def read_shard(file: Path, vocab_size: int) -> list[Text]:
    """The texts of a shard.

    Raises:
        CheckpointError: it is damaged, or was made with another tokenizer.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            ids, lengths = arrays["ids"].astype(np.int64), arrays["length"]
            prompts, kinds = arrays["prompt"], arrays["kind"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{file} is damaged ({error}); generate it again") from error
    if ids.max(initial=0) >= vocab_size:
        raise CheckpointError(
            f"{file} holds token {ids.max()}, the target's vocabulary has {vocab_size}: it was "
            "made for another target"
        )
    if lengths.sum() != len(ids) or not len(lengths) == len(prompts) == len(kinds):
        raise CheckpointError(f"{file} is damaged (lengths do not add up); generate it again")
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    rows = zip(parts, prompts, kinds, strict=True)
    return [Text(part, int(prompt), str(kind)) for part, prompt, kind in rows]


def read(folder: Path, split: str, vocab_size: int) -> list[Text]:
    """All texts of a split, in the order of their shards.

    Args:
        folder: holds the shards.
        split: "train" or "held".
        vocab_size: of the target.

    Raises:
        CheckpointError: there are none, or one is damaged.
    """
    files = sorted(folder.glob(f"{split}*.npz"))
    texts = [text for file in files for text in read_shard(file, vocab_size)]
    if not texts:
        raise CheckpointError(f"{folder} holds no {split}*.npz with text: generate data first")
    return texts
