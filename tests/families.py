"""Real configs of every family, at reduced sizes: what the losslessness matrix runs over."""

from __future__ import annotations

from typing import Any

from tests.tiny import LLAMA, VOCAB

BASE: dict[str, Any] = {k: v for k, v in LLAMA.items() if k != "eos_token_id"}
WINDOW = 8
HYBRID = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,  # fewer than value heads
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
MROPE = {
    "type": "default",
    "mrope_section": [1, 1, 0],
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4}


def _qwen3_5(**changes: Any) -> dict[str, Any]:
    inner = {**BASE, **HYBRID, "model_type": "qwen3_5_text", "rope_parameters": MROPE, **changes}
    kind = "qwen3_5_moe" if "num_experts" in changes else "qwen3_5"
    return {"model_type": kind, "text_config": inner}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "rope_scaling": LLAMA3},
    "llama tied": {**BASE, "tie_word_embeddings": True},
    "qwen2": {**BASE, "model_type": "qwen2"},
    "qwen3": {**BASE, "model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {
        **BASE,
        "model_type": "qwen3_moe",
        **{"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1},
        **{"mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True},
    },
    "qwen3_5": _qwen3_5(),
    "qwen3_5 tied": _qwen3_5(tie_word_embeddings=True),
    "qwen3_5_moe": _qwen3_5(
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        shared_expert_intermediate_size=32,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    ),
    "qwen3_next": {
        **BASE,
        **HYBRID,
        "model_type": "qwen3_next",
        **{"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1},
        **{"shared_expert_intermediate_size": 32, "moe_intermediate_size": 32},
        **{"mlp_only_layers": [], "partial_rotary_factor": 0.5, "norm_topk_prob": True},
    },
    "gemma2": {
        **BASE,
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        **BASE,
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
    },
    "gemma4": {
        **BASE,
        "model_type": "gemma4_text",
        **{"global_head_dim": 32, "vocab_size_per_layer_input": VOCAB},
        **{"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
        **{"sliding_window": WINDOW, "layer_types": ALTERNATING, "use_double_wide_mlp": False},
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": False,
    },
    "gemma4 shared": {
        **BASE,
        "model_type": "gemma4_text",
        **{"global_head_dim": 32, "vocab_size_per_layer_input": VOCAB},
        **{"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16},
        **{"sliding_window": WINDOW, "layer_types": ALTERNATING},
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        **BASE,
        "model_type": "gpt_oss",
        **{"num_local_experts": 4, "num_experts_per_tok": 2},
        **{"sliding_window": WINDOW, "rope_scaling": YARN, "layer_types": ALTERNATING},
    },
    "granite": {
        **BASE,
        "model_type": "granite",
        **{"logits_scaling": 4.0, "attention_multiplier": 0.25, "embedding_multiplier": 6.0},
        **{"residual_multiplier": 0.5, "attention_bias": False, "mlp_bias": False},
    },
    "llama4": {
        "model_type": "llama4",
        "text_config": {
            **BASE,
            "model_type": "llama4_text",
            **{"attention_bias": False, "attention_chunk_size": WINDOW, "use_qk_norm": True},
            **{"interleave_moe_layer_step": 2, "intermediate_size_mlp": 96},
            **{"num_experts_per_tok": 1, "num_local_experts": 2, "rope_scaling": LLAMA3},
        },
    },
    "mamba2": {
        "model_type": "mamba2",
        **{"num_heads": 8, "head_dim": 16, "vocab_size": VOCAB, "hidden_size": 64},
        **{"intermediate_size": 128, "state_size": 16, "num_hidden_layers": 4},
        **{"layer_norm_epsilon": 1e-5, "conv_kernel": 4, "n_groups": 1, "use_bias": False},
        **{"use_conv_bias": True, "tie_word_embeddings": True, "time_step_rank": "auto"},
        **{"time_step_limit": [0.0, 100.0], "max_position_embeddings": 512},
    },
    "lfm2": {
        **BASE,
        "model_type": "lfm2",
        **{"norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3, "block_dim": 64},
        **{"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_ff_dim": 96},
        **{"block_auto_adjust_ff_dim": False, "full_attn_idxs": [1, 3]},
    },
    "falcon_h1": {
        **BASE,
        "model_type": "falcon_h1",
        **{"mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 16},
        **{"mamba_n_heads": 4, "mamba_n_groups": 1},
    },
    "granitemoehybrid": {
        **BASE,
        **MAMBA2,
        "model_type": "granitemoehybrid",
        **{"logits_scaling": 4.0, "attention_multiplier": 0.25, "embedding_multiplier": 6.0},
        **{"residual_multiplier": 0.5, "attention_bias": False},
        **{"mamba_proj_bias": False, "mamba_n_groups": 1, "mamba_conv_bias": True},
        "layer_types": ["mamba", "attention"] * 2,
    },
    "deepseek_v32": {
        **BASE,
        "model_type": "deepseek_v32",
        **{"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32},
        **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
        **{"index_head_dim": 32, "index_n_heads": 2, "index_topk": 256},
        **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "first_k_dense_replace": 1},
        "rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "jamba": {
        **BASE,
        "model_type": "jamba",
        **{"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_conv": 4},
        **{"expert_layer_offset": 1, "expert_layer_period": 2, "mamba_d_state": 16},
        **{"mamba_expand": 2, "num_experts": 2, "num_experts_per_tok": 1},
    },
    "rwkv7": {
        "model_type": "rwkv7",
        **{"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "norm_eps": 1e-5},
        **{"head_dim": 32, "num_hidden_layers": 3, "a_low_rank_dim": 16, "v_low_rank_dim": 16},
        **{"gate_low_rank_dim": 16, "decay_low_rank_dim": 16},
    },
    "recurrent_gemma": {
        **BASE,
        "model_type": "recurrent_gemma",
        **{"attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 3.0},
        **{"attention_window_size": WINDOW, "num_key_value_heads": 1},
        "block_types": ["recurrent", "attention"],
    },
}
