"""The draft that a run starts from: a given one, or a new one for the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UnsupportedError
from ..models import draft_file, precision
from ..models.draft import DFlashDraft
from ..models.dtype import Dtype
from ..models.target import TargetModel
from .new_draft import config_for, new_draft

NEW_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Start:
    """The draft to start from.

    Attributes:
        init_from: a folder or repository with a draft, "demo" for the built-in one, None for a
            new one.
        block_size: anchor and drafted tokens; None for a given draft's own, or 16.
        layers: of a new draft.
        taps: of a new draft, how many.
        mask_token_id: of a new draft; None looks for a token that no text has.
    """

    init_from: str | None = None
    block_size: int | None = None
    layers: int = 5
    taps: int = 5
    mask_token_id: int | None = None


def make(
    start: Start, target: TargetModel, tokenizer: TokenizerWrapper, seed: int
) -> tuple[DFlashDraft, dict[str, Any]]:
    """The draft in float32, and its config.json.

    Raises:
        MirrorError: there is none that fits the target.
    """
    if start.init_from is not None:
        return _given(start.init_from, start.block_size, target)
    mask = start.mask_token_id
    if mask is None:
        mask = unused_token(target, tokenizer)
    if mask >= target.vocab_size:
        raise UnsupportedError(
            f"mask token {mask} is none of {target.name}'s {target.vocab_size} tokens"
        )
    block_size = start.block_size or NEW_BLOCK_SIZE
    config = config_for(target, mask, layers=start.layers, block_size=block_size, taps=start.taps)
    return new_draft(config, target, seed), config


def unused_token(target: TargetModel, tokenizer: TokenizerWrapper) -> int:
    """A token that no text has, to stand for one that is to be drafted.

    Raises:
        UnsupportedError: none was found.
    """
    known = len(tokenizer.get_vocab())
    if target.vocab_size > known:
        return known
    template = str(tokenizer.chat_template or "") if tokenizer.has_chat_template else ""
    taken = {tokenizer.bos_token_id, tokenizer.pad_token_id, *tokenizer.eos_token_ids}
    for token, text in sorted(tokenizer.added_tokens_decoder.items(), reverse=True):
        if token not in taken and text.special and text.content not in template:
            return int(token)
    raise UnsupportedError(
        f"{target.name} has no token that no text has; name one with --mask-token-id"
    )


def _given(
    name: str, block_size: int | None, target: TargetModel
) -> tuple[DFlashDraft, dict[str, Any]]:
    parsed, config = draft_file.read_config(name, target)
    if parsed.dflash2 is not None:
        raise UnsupportedError(f"{name} is a DFlash 2 draft: it can be used but not trained")
    if block_size is not None and block_size != parsed.block_size:
        parsed = replace(parsed, block_size=block_size)
        config = _with_block_size(config, block_size)
    draft, _ = precision.apply(draft_file.read_model(name, parsed, config), Dtype.float32)
    mx.eval(draft.parameters())
    return draft, {key: value for key, value in config.items() if key != "quantization"}


def _with_block_size(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    nested = dict(config.get("dflash_config") or {})
    if "block_size" in nested:
        return {**config, "dflash_config": {**nested, "block_size": size}}
    return {**config, "block_size": size}
