"""The draft over many anchors of many sequences in one pass (arXiv 2602.06036, on training).

A block sees the features strictly before its anchor, and itself. Decoding runs one block behind a
cache; here all blocks of a batch share each layer's keys and values of the whole sequence, and a
block attends to its own rows apart, so that no row x row mask over all blocks is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from ..models.draft import DFlashDraft, DraftAttention, DraftLayer


@dataclass(frozen=True)
class Blocks:
    """What the draft is asked to fill in.

    Attributes:
        embedded: [b, A, B, H] embeddings of A blocks of each of b sequences: the anchor, visible
            tokens, and masks.
        anchors: [b, A] positions of the anchors.
        ends: [b, A] the block sees features of positions before this: the anchor's, or fewer.
    """

    embedded: mx.array
    anchors: mx.array
    ends: mx.array


def hidden_states(draft: DFlashDraft, features: mx.array, blocks: Blocks) -> mx.array:
    """Hidden states [b, A, B, H] after the final norm; position k predicts the token k after the
    anchor.

    Args:
        draft: a plain DFlash draft.
        features: [b, S, taps * H] of whole sequences.
        blocks: on these sequences.
    """
    context = draft.hidden_norm(draft.fc(features.astype(draft.fc_dtype)))
    x = blocks.embedded.astype(draft.fc_dtype)
    if draft.config.embedding_scale != 1.0:
        x = x * draft.config.embedding_scale
    for layer in draft.layers:
        x = _layer(layer, x, context, blocks)
    return draft.norm(x)


def _layer(layer: DraftLayer, x: mx.array, context: mx.array, blocks: Blocks) -> mx.array:
    x = x + _attention(layer.self_attn, layer.input_layernorm(x), context, blocks)
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _attention(attn: DraftAttention, x: mx.array, context: mx.array, blocks: Blocks) -> mx.array:
    """Attention of each block [b, A, B, H] to the context [b, S, H] and itself."""
    b, a, size, _ = x.shape
    kv = attn.num_kv_heads
    groups = attn.num_heads // kv
    places = blocks.anchors.reshape(-1)
    queries = attn.rope(_heads(attn.q_norm, attn.q_proj(x), attn.num_heads), offset=places)
    own_keys = attn.rope(_heads(attn.k_norm, attn.k_proj(x), kv), offset=places)
    own_values = _heads(None, attn.v_proj(x), kv)
    keys = attn.rope(_heads(attn.k_norm, attn.k_proj(context)[:, None], kv), offset=0)
    values = _heads(None, attn.v_proj(context)[:, None], kv)

    # [b * A, heads, B, d] to [b, kv, A, groups * B, d]: heads of a group share keys and values.
    queries = queries.reshape(b, a, kv, groups * size, -1).transpose(0, 2, 1, 3, 4)
    own_keys = own_keys.reshape(b, a, kv, size, -1).transpose(0, 2, 1, 3, 4)
    own_values = own_values.reshape(b, a, kv, size, -1).transpose(0, 2, 1, 3, 4)
    queries = queries * attn.scale
    flat = queries.reshape(b, kv, a * groups * size, -1)
    outer = (flat @ keys.swapaxes(-1, -2)).reshape(b, kv, a, groups, size, -1)
    inner = (queries @ own_keys.swapaxes(-1, -2)).reshape(b, kv, a, groups, size, size)
    scores = mx.concatenate([outer + _context_mask(attn, blocks, size, keys.shape[2]),
                             inner + _block_mask(attn, size)], axis=-1)  # fmt: skip
    weights = mx.softmax(scores, axis=-1, precise=True)
    seen = keys.shape[2]
    outer = weights[..., :seen].reshape(b, kv, a * groups * size, seen) @ values
    inner = weights[..., seen:].reshape(b, kv, a, groups * size, size) @ own_values
    out = outer.reshape(b, kv, a, groups, size, -1) + inner.reshape(b, kv, a, groups, size, -1)
    return attn.o_proj(out.transpose(0, 2, 4, 1, 3, 5).reshape(b, a, size, -1))


def _heads(norm: nn.RMSNorm | None, projected: mx.array, heads: int) -> mx.array:
    """[b, A, n, heads * d] to [b * A, heads, n, d], each head normed."""
    b, a, n, _ = projected.shape
    split = projected.reshape(b * a, n, heads, -1)
    return (split if norm is None else norm(split)).transpose(0, 2, 1, 3)


def _context_mask(attn: DraftAttention, blocks: Blocks, size: int, width: int) -> mx.array:
    """[b, 1, A, 1, 1 or B, S]: 0 where a block row sees a context row, else -inf."""
    places = mx.arange(width)
    seen = places < blocks.ends[..., None, None]
    if attn.window is not None:
        rows = blocks.anchors[..., None] + mx.arange(size)
        seen = seen & (rows[..., None] - places < attn.window)
    return mx.where(seen, 0.0, -mx.inf)[:, None, :, None]


def _block_mask(attn: DraftAttention, size: int) -> mx.array:
    """[B, B]: a causal layer's rows see earlier rows of their block only."""
    if not attn.causal:
        return mx.zeros((size, size))
    rows = mx.arange(size)
    return mx.where(rows[None] <= rows[:, None], 0.0, -mx.inf)
