"""A draft to start from: one that is given, or a new one shaped after its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import UnsupportedError
from ..models.draft import DFlashDraft
from ..models.draft_config import parse
from ..models.target import TargetModel

INIT_SCALE = 0.02
QK_NORM = 1.5  # where the target has no norm on its heads, this spreads attention about right
_COPIED = ("hidden_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")


def config_for(
    target: TargetModel,
    mask_token_id: int,
    *,
    layers: int = 5,
    block_size: int = 16,
    taps: int = 5,
) -> dict[str, Any]:
    """config.json of a new draft, in the published layout: attention shaped like the target's.

    Args:
        target: lends its shapes.
        mask_token_id: a token that no text has.
        layers: of the draft.
        block_size: anchor and drafted tokens.
        taps: how many target layers are tapped.

    Raises:
        UnsupportedError: the target's config does not tell a shape.
    """
    source = target.config.get("text_config", target.config)
    missing = [key for key in _COPIED[:2] if key not in source]
    if missing:
        raise UnsupportedError(
            f"{target.name}: its config has no {missing[0]}; start from a draft (--init-from)"
        )
    heads = source["num_attention_heads"]
    rope = source.get("rope_parameters") or {}
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": source["hidden_size"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": source.get("num_key_value_heads") or heads,
        "head_dim": source.get("head_dim") or source["hidden_size"] // heads,
        "intermediate_size": source.get("intermediate_size") or 4 * source["hidden_size"],
        "vocab_size": target.vocab_size,
        "rms_norm_eps": source.get("rms_norm_eps", 1e-6),
        "rope_theta": source.get("rope_theta") or rope.get("rope_theta") or 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": source.get("max_position_embeddings", 32768),
        "block_size": block_size,
        "num_target_layers": target.depth,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["full_attention"] * layers,
        "dflash_config": {
            "target_layer_ids": tap_layers(target.depth, taps),
            "mask_token_id": mask_token_id,
        },
    }


def tap_layers(depth: int, count: int) -> list[int]:
    """Layers to tap, evenly from the second to the third last, as the published drafts do."""
    if count == 1 or depth < 5:
        return sorted({max(0, depth - 3 if depth > 3 else depth - 1)})
    return sorted({round(1 + i * (depth - 4) / (count - 1)) for i in range(count)})


def new_draft(config: Mapping[str, Any], target: TargetModel, seed: int) -> DFlashDraft:
    """A draft whose layers start as copies of the target's last ones where shapes agree, and random
    elsewhere; its context starts as the last tap.
    """
    mx.random.seed(seed)
    draft = DFlashDraft(parse(dict(config), "the new draft"))
    weights = dict(tree_flatten(draft.parameters()))
    for name, value in weights.items():
        if value.ndim > 1:
            weights[name] = INIT_SCALE * mx.random.normal(value.shape)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            weights[name] = mx.full(value.shape, QK_NORM)
    first = target.depth - len(draft.layers)
    for index in range(len(draft.layers)):
        if first + index >= 0:
            _copy(weights, f"layers.{index}.", target, first + index)
    hidden = draft.config.hidden_size
    weights["fc.weight"][:, -hidden:] += mx.eye(hidden)
    draft.load_weights(list(weights.items()))
    mx.eval(draft.parameters())
    return draft


def _copy(weights: dict[str, mx.array], prefix: str, target: TargetModel, layer: int) -> None:
    own = dict(tree_flatten(target.structure.layers[layer].parameters()))
    for name, value in own.items():
        wanted = weights.get(prefix + name)
        if wanted is not None and wanted.shape == value.shape:
            weights[prefix + name] = value.astype(mx.float32)
