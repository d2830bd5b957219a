"""A draft from its folder or repository, as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError
from . import checkpoint, demo, pairing
from .draft import DFlashDraft
from .draft_config import DraftConfig, parse
from .target import TargetModel


def draft_folder(name: str) -> Path:
    """The folder of a draft: "demo", a folder, or a repository."""
    if name == demo.NAME:
        return demo.draft_folder()
    return checkpoint.locate(name, "draft", checkpoint.DRAFT_FILES)


def fingerprint(name: str) -> str:
    """sha256 over a draft's weight files: the same in whatever format it is loaded."""
    return checkpoint.fingerprint(draft_folder(name))


def read_config(name: str, target: TargetModel) -> tuple[DraftConfig, dict[str, Any]]:
    """A draft's config, parsed and as it is written.

    Raises:
        MirrorError: it is missing, damaged, or does not fit the target.
    """
    folder = draft_folder(name)
    raw = checkpoint.read_config(folder, "draft")
    config = parse(raw, str(folder))
    pairing.check(target, config, name)
    return config, raw


def read_model(name: str, config: DraftConfig, raw: Mapping[str, Any]) -> DFlashDraft:
    """A draft with its weights in the format in which they are stored; lazy.

    Args:
        name: as for `draft_folder`.
        config: parsed.
        raw: as it is written; tells of a quantised draft.

    Raises:
        CheckpointError: the weights are missing, damaged, or not those of the config.
    """
    model = DFlashDraft(config)
    weights = checkpoint.load_weights(draft_folder(name), "draft")
    quantization = raw.get("quantization")
    if quantization:
        nn.quantize(
            model,
            quantization["group_size"],
            quantization["bits"],
            class_predicate=lambda path, _: f"{path}.scales" in weights,
        )
    try:
        model.load_weights(list(weights.items()))
    except ValueError as error:
        text = str(error).strip().splitlines()
        raise CheckpointError(
            f"the weights of the draft {name} do not match its config: "
            f"{text[0] if text else 'they differ'}"
        ) from error
    return model


def quantize(model: DFlashDraft, bits: int) -> dict[str, int]:
    """Quantise a draft's linear layers in place, as far as their width allows.

    Returns:
        What to write into its config as `quantization`.
    """
    settings = {"group_size": 64, "bits": bits}
    mx.eval(model.parameters())
    nn.quantize(
        model,
        **settings,
        class_predicate=lambda _, m: isinstance(m, nn.Linear) and m.weight.shape[1] % 64 == 0,
    )
    return settings
