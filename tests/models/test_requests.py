from __future__ import annotations

import json

import pytest

from mirror_sd.errors import PromptError
from mirror_sd.models import requests


def test_prompts_are_read_from_files(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("One\n\n  Two \n")
    assert [r.messages for r in requests.read(text)] == [(("user", "One"),), (("user", "Two"),)]
    rows = tmp_path / "b.jsonl"
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    lines = [{"prompt": "One", "kind": "x"}, {"messages": chat}, {"text": "Once upon"}]
    rows.write_text("\n".join(json.dumps(line) for line in lines))
    one, two, three = requests.read(rows)
    assert (one.messages, one.kind) == ((("user", "One"),), "x")
    assert two.messages == (("system", "Be brief"), ("user", "Hi"))
    assert (three.messages, three.text) == ((), "Once upon")


@pytest.mark.parametrize(
    "line", ['{"what": 3}', "[1]", "not json", '{"messages": [{"role": "user", "content": 3}]}']
)
def test_a_row_that_makes_no_sense_is_named(tmp_path, line):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(PromptError, match="line 2: a row needs"):
        requests.read(file)
