from __future__ import annotations

from mirror_sd.bench import prompts


def test_there_are_prompts_of_every_kind_and_none_twice():
    everything = prompts.builtin()
    assert len({p.text for p in everything}) == len(everything) >= 60
    assert [p.kind for p in prompts.builtin(1)] == list(prompts.KINDS)
    assert [p.kind for p in prompts.builtin(2)[:3]] == ["code", "code", "maths"]
