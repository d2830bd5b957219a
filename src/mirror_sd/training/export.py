"""A trained draft in the published layout: config.json, weights, and a ranking of tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..models import draft_file
from ..models.draft import DFlashDraft
from ..models.draft_head import RANKING
from .data import Text


def export(
    folder: Path,
    draft: DFlashDraft,
    config: Mapping[str, Any],
    texts: Sequence[Text],
    vocab: int,
    bits: int | None = None,
) -> None:
    """Write a draft; every file appears whole or not at all.

    Args:
        folder: is made if it is missing.
        draft: whose weights.
        config: its config.json; `torch_dtype` is set.
        texts: what it learnt from: answers tell which tokens the target says most.
        vocab: size of the vocabulary.
        bits: quantise the linear layers, which other loaders may not read; None keeps bfloat16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    twin = DFlashDraft(draft.config)
    twin.update(draft.parameters())
    twin.set_dtype(mx.bfloat16)
    config = {**config, "torch_dtype": "bfloat16"}
    if bits is not None:
        config["quantization"] = draft_file.quantize(twin, bits)
    weights = dict(tree_flatten(twin.parameters()))
    scratch = folder / ".new.safetensors"
    mx.save_safetensors(str(scratch), weights, metadata={"format": "pt"})
    scratch.replace(folder / "model.safetensors")
    with (folder / ".new.npy").open("wb") as stream:
        np.save(stream, ranking(texts, vocab))
    (folder / ".new.npy").replace(folder / RANKING)
    content = json.dumps(config, indent=1)
    (folder / ".new.json").write_text(content, encoding="utf-8")
    (folder / ".new.json").replace(folder / "config.json")


def ranking(texts: Sequence[Text], vocab: int) -> np.ndarray:
    """All token ids, those that answers use most first, then in order."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(text.ids[text.prompt :].tolist())
    used = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    rest = np.setdiff1d(np.arange(vocab), used)
    return np.concatenate([np.array(used, np.int64), rest]).astype(np.uint32)
