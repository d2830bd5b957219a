from __future__ import annotations

import pytest

from mirror_sd.errors import PairingError
from mirror_sd.models import pairing, registry
from mirror_sd.models.draft_config import parse
from tests import tiny


def taps(*layers: int, mask: int = 1):
    return {"target_layer_ids": list(layers), "mask_token_id": mask}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 128}, "hidden size 128 against 64"),
        ({"vocab_size": 300}, "vocabulary 300 against 263"),
        ({"num_target_layers": 8}, "number of target layers 8 against 4"),
        (
            {"num_target_layers": None, "dflash_config": taps(1, 7)},
            "layer 7 of a target with layers 0 to 3",
        ),
        ({"dflash_config": taps(1, mask=263)}, "mask id 263 in a vocabulary of 263"),
    ],
)
def test_a_draft_for_another_target_is_refused_with_both_numbers(changes, said):
    config = parse({**tiny.DRAFT, **changes}, "here")
    with pytest.raises(PairingError, match=said):
        pairing.check(tiny.target(), config, "mine")


def test_the_right_draft_is_named_if_it_is_known():
    target = tiny.target()
    target.name = "mlx-community/Qwen3-8B-4bit"
    config = parse({**tiny.DRAFT, "hidden_size": 32}, "here")
    with pytest.raises(PairingError, match="is z-lab/Qwen3-8B-DFlash-b16"):
        pairing.check(target, config, "mine")


def test_a_draft_that_fits_passes():
    pairing.check(tiny.target(), parse(tiny.DRAFT, "here"), "mine")


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("mlx-community/Qwen3-8B-4bit", "z-lab/Qwen3-8B-DFlash-b16"),
        ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"),
        ("Qwen/Qwen3-8B-MLX-8bit", "z-lab/Qwen3-8B-DFlash-b16"),
        ("mlx-community/Qwen3-4B-4bit-DWQ-053125", "z-lab/Qwen3-4B-DFlash-b16"),
        ("/models/Qwen3-4B-bf16/", "z-lab/Qwen3-4B-DFlash-b16"),
        ("mlx-community/Qwen3.5-4B-4bit", "z-lab/Qwen3.5-4B-DFlash"),
        (
            "mlx-community/Meta-Llama-3.1-8B-Instruct-8bit",
            "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        ),
        (
            "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
            "z-lab/Qwen3-Coder-30B-A3B-DFlash",
        ),
        ("mlx-community/gpt-oss-20b-MXFP4-Q8", "z-lab/gpt-oss-20b-DFlash"),
    ],
)
def test_conversions_of_a_target_resolve_to_its_draft(target, draft):
    row = registry.find(target)
    assert row is not None
    assert row.draft == draft


@pytest.mark.parametrize(
    "target", ["Qwen/Qwen3-14B", "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-8B-Base", "my/model"]
)
def test_other_models_have_no_draft(target):
    assert registry.find(target) is None
