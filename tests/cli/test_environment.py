import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from framework.cli.environment import as_written, without_values


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("${oc.env:NAME}", "${oc.env:NAME}"),
        ("${a}", "${oc.env:NAME}"),
        ("x-${oc.env:NAME}-y", "x-${oc.env:NAME}-y"),
        ("${oc.env:NAME,3}", "${oc.env:NAME}"),
        ("${oc.env:OTHER,3}", "3"),
        ("${oc.env:OTHER,null}", None),
        ("${oc.decode:${oc.env:NAME}}", "${oc.decode:${oc.env:NAME}}"),
        ("${oc.decode:'[1]'}", [1]),
        ("${places.${oc.env:NAME}}", "${places.${oc.env:NAME}}"),
        ("${n}", 7),
        ("${places}", {"here": 1}),
    ],
)
def test_a_reference_is_filled_in_unless_it_leads_to_the_environment(text, written, monkeypatch):
    monkeypatch.setenv("NAME", "here")
    config = OmegaConf.create({"x": text, "n": 7, "places": {"here": 1}, "a": "${oc.env:NAME}"})
    before = OmegaConf.to_container(config, resolve=True)
    assert as_written(config) == {
        "x": written,
        "n": 7,
        "places": {"here": 1},
        "a": "${oc.env:NAME}",
    }
    assert OmegaConf.to_container(config, resolve=True) == before  # the environment is read again


def test_words_about_a_run_name_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("NAME", "it's\nlong")
    Path("resolved.json").write_text(
        json.dumps({"x": "${oc.env:NAME}", "y": "${oc.env:SHORT}", "z": "${oc.env:GONE}"})
    )
    monkeypatch.setenv("SHORT", "no")
    assert without_values("say it's long, no?", tmp_path) == "say ${oc.env:NAME}, no?"
    assert without_values(f"say {os.environ['NAME']}", tmp_path) == "say ${oc.env:NAME}"
