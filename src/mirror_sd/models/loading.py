"""From names to a ready pair of target and draft."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from ..errors import CheckpointError, MirrorError, Notice, UnsupportedError
from . import checkpoint, demo, draft_file, precision, registry
from .draft import DFlashDraft
from .draft_head import read_ranking
from .dtype import Dtype
from .footprint import Footprint, estimate
from .target import TargetModel


@dataclass
class Draft:
    """A loaded draft and where it came from.

    Attributes:
        model: in MLX.
        name: a folder or repository.
        ranking: token ids, the most frequent first, if it brings them.
        placed: what drafts in its place, if it runs on a device of its own.
    """

    model: DFlashDraft
    name: str
    ranking: list[int] | None = None
    placed: Any = None


@dataclass
class Pair:
    """What `load` returns as the model: a target, and a draft or None for plain decoding.

    Attributes:
        target: weights, embedding and head of the target.
        draft: the draft, or None.
        eos_token_ids: ids that end an answer.
    """

    target: TargetModel
    draft: Draft | None
    eos_token_ids: frozenset[int]


def load_pair(
    target: str,
    draft: str | None = None,
    *,
    drafting: bool = True,
    dtype: Dtype = Dtype.auto,
    draft_bits: int | None = None,
    progress: demo.Progress | None = None,
) -> tuple[Pair, TokenizerWrapper]:
    """Load a target and the draft that belongs to it.

    Args:
        target: "demo", a folder, or a repository.
        draft: a folder or repository; None takes the registry's, and if it has none decodes
            plainly, with a notice.
        drafting: False loads no draft at all.
        dtype: number format, see `precision`.
        draft_bits: quantise the draft to 8 or 4 bits.
        progress: hears about downloads and conversions.

    Raises:
        MirrorError: something is missing, damaged, or does not fit; the message says what to do.
    """
    folder = _target_folder(target, progress)
    model, tokenizer = _load_target(folder, target, dtype)
    chosen = (draft or _registered(target)) if drafting else None
    loaded = None
    if chosen is not None:
        loaded = _load_draft(chosen, model, dtype, draft_bits)
    return Pair(model, loaded, frozenset(tokenizer.eos_token_ids)), tokenizer


def measure(
    target: str, draft: str | None = None, progress: demo.Progress | None = None
) -> tuple[Footprint, int | None]:
    """The memory that a pair will take, without loading it.

    Args:
        target: as for `load_pair`; of a repository that is not cached, headers only are read.
        draft: as for `load_pair`.
        progress: as for `load_pair`.

    Returns:
        The target's footprint, and the bytes of the draft's weights, None without a draft.

    Raises:
        MirrorError: one of them is missing, damaged or unknown.
    """
    name = str(demo.target_folder(progress)) if target == demo.NAME else target
    config, stored = checkpoint.look(name, "target", "model*.safetensors")
    found = estimate(config, stored)
    if draft is None:
        row = registry.find(target)
        draft = demo.NAME if target == demo.NAME else row.draft if row else None
        if draft is None:
            return found, None
    name = str(demo.draft_folder()) if draft == demo.NAME else draft
    return found, checkpoint.look(name, "draft")[1]


def fingerprints(pair: Pair) -> dict[str, str]:
    """What tells the weights of a target and its draft from others."""
    found = {"target": checkpoint.fingerprint(_target_folder(pair.target.name, None))}
    if pair.draft is not None:
        found["draft"] = draft_file.fingerprint(pair.draft.name)
    return found


def _target_folder(target: str, progress: demo.Progress | None) -> Path:
    if target == demo.NAME:
        return demo.target_folder(progress)
    return checkpoint.locate(target, "target", checkpoint.TARGET_FILES)


def _load_target(folder: Path, name: str, dtype: Dtype) -> tuple[TargetModel, TokenizerWrapper]:
    config = checkpoint.read_config(folder, "target")
    checkpoint.check_weights(folder, "target", "model*.safetensors")
    try:
        model, config = load_model(folder, lazy=True)
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
    except MirrorError:
        raise
    except Exception as error:  # mlx-lm and transformers raise all sorts on a bad checkpoint
        raise CheckpointError(f"cannot load the target {name}: {_one_line(error)}") from error
    model, notice = precision.apply(model, dtype)
    if notice:
        warnings.warn(notice, Notice, stacklevel=4)
    mx.eval(model.parameters())
    try:
        return TargetModel(model, config, name), tokenizer
    except RuntimeError as error:  # MLX has no kernel for this, as for 16-bit experts on a CPU
        raise UnsupportedError(
            f"{name} cannot run in this format here ({_one_line(error)}); try --dtype float32"
        ) from error


def _registered(target: str) -> str | None:
    if target == demo.NAME:
        return demo.NAME
    row = registry.find(target)
    if row is None:
        warnings.warn(
            f"no draft is known for {target}: decoding plainly; name one with --draft",
            Notice,
            stacklevel=4,
        )
    return row.draft if row else None


def _load_draft(name: str, target: TargetModel, dtype: Dtype, bits: int | None) -> Draft:
    config, raw = draft_file.read_config(name, target)
    target.lend()
    model = _convert(draft_file.read_model(name, config, raw), dtype, bits)
    return Draft(model, name, read_ranking(draft_file.draft_folder(name), target.vocab_size))


def _convert(model: DFlashDraft, dtype: Dtype, bits: int | None) -> DFlashDraft:
    model.set_dtype(precision.compute_dtype(dtype))
    if bits is not None:
        draft_file.quantize(model, bits)
    elif precision.on_cpu() and dtype is Dtype.auto:
        model, _ = precision.apply(model, Dtype.float32)
    mx.eval(model.parameters())
    return model


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
