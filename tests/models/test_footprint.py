from __future__ import annotations

import huggingface_hub
import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mirror_sd.errors import CheckpointError, UnsupportedError
from mirror_sd.models import loading
from mirror_sd.models.footprint import estimate
from tests import tiny
from tests.families import FAMILIES, WINDOW


def cache_bytes(family: str, tokens: int) -> int:
    """Bytes that caches really hold for so many tokens, spare room not counted."""
    model = tiny.model(FAMILIES[family])
    caches = make_prompt_cache(model)
    model(mx.zeros((1, tokens), mx.int32), cache=caches)
    total = 0
    for cache in caches:
        for _, array in tree_flatten([part for part in cache.state if part is not None]):
            if not isinstance(array, mx.array):
                continue
            rows = array.shape[2] if array.ndim == 4 and hasattr(cache, "keys") else 1
            total += array.nbytes // rows * (tokens if rows > 1 else 1)
    return total


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3_5", "lfm2", "mamba2"])
def test_caches_take_what_was_estimated(family):
    found = estimate(FAMILIES[family], 0)
    assert found.caches(50, bytes_per_value=4) == cache_bytes(family, 50)


def test_windows_stop_growing():
    found = estimate(FAMILIES["gemma3"], 0)
    growth = found.caches(1001) - found.caches(1000)
    early = found.caches(WINDOW) - found.caches(WINDOW - 1)
    assert growth == early // 2  # half of the layers slide


def test_parameters_and_stored_bytes_are_those_of_the_checkpoint(tmp_path):
    folder = tiny.write_target(tmp_path / "target")
    found, draft = loading.measure(str(folder), str(tiny.write_draft(tmp_path / "draft")))
    real = sum(a.size for _, a in tree_flatten(tiny.model(tiny.config()).parameters()))
    assert found.parameters == real
    assert found.stored == 4 * real
    assert draft == sum(a.nbytes for _, a in tree_flatten(tiny.draft().parameters()))


def test_a_repository_is_measured_by_its_headers_alone(tmp_path, monkeypatch):
    """A stand-in for the hub: it serves a config and headers, and no weights."""
    folder = tiny.write_target(tmp_path / "target")
    asked = []

    def download(repo, file):
        asked.append((repo, file))
        return str(folder / file)

    def headers(repo):
        tensor = huggingface_hub.utils.TensorInfo("BF16", [3, 7], (10, 52))
        file = huggingface_hub.utils.SafetensorsFileMetadata({}, {"a": tensor, "b": tensor})
        return huggingface_hub.utils.SafetensorsRepoMetadata(
            None, True, {}, {"1.safetensors": file, "2.safetensors": file}
        )

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", headers)
    found, draft = loading.measure("someone/model")
    assert found.stored == 4 * 42
    assert found.parameters > 0
    assert draft is None
    assert asked == [("someone/model", "config.json")]


def test_a_hub_out_of_reach_is_an_error(monkeypatch, tmp_path):
    def headers(repo):
        raise RuntimeError("no route")

    config = tiny.write_target(tmp_path / "target") / "config.json"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(config))
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", headers)
    with pytest.raises(CheckpointError, match="hub cannot be reached"):
        loading.measure("someone/model")


def test_estimating_costs_no_memory():
    before = mx.get_active_memory()
    huge = {**FAMILIES["qwen3"], "hidden_size": 4096, "num_hidden_layers": 36}
    found = estimate({**huge, "intermediate_size": 12288, "vocab_size": 151936}, 0)
    assert found.parameters > 6e9
    assert mx.get_active_memory() - before < 1e8


def test_an_unknown_model_is_an_error():
    with pytest.raises(UnsupportedError, match="cannot estimate"):
        estimate({"model_type": "nonesuch"}, 0)
