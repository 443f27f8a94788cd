import inspect
from hashlib import sha256

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from framework.cli.reference_limit import (
    MOST_REFERENCES,
    RESOLVE,
    count_references_anew,
    limit_references,
)

# sha256 of the source of OmegaConf 2.3's Container.resolve_parse_tree.
KNOWN = "cfec8e7464e2603b42a94ebc78f9ba6adf8357a3e12b225cf3d5c7dd33cf61f6"


@pytest.fixture(autouse=True)
def limited():
    limit_references()
    count_references_anew()


def test_the_method_that_is_replaced_is_the_one_we_know():
    """If this fails, read the method's new source: docs/design/0012-guard.md."""
    assert sha256(inspect.getsource(RESOLVE).encode()).hexdigest() == KNOWN
    assert list(inspect.signature(RESOLVE).parameters) == [
        *("self", "parse_tree", "node", "memo", "key"),
    ]


def test_a_few_references_are_resolved():
    config = OmegaConf.create({"a": "x", "b": "${a}${a}", "c": ["${b}"]})
    assert OmegaConf.to_container(config, resolve=True)["c"] == ["xx"]


@pytest.mark.parametrize("inner", ["${a0}" * 10, "${oc.select:a0}" * 10])
def test_texts_that_multiply_are_refused(inner):
    levels = {f"a{level}": inner.replace("a0", f"a{level - 1}") for level in range(1, 9)}
    config = OmegaConf.create({"a0": "", **levels})
    with pytest.raises(InterpolationResolutionError, match="1,000 references"):
        OmegaConf.to_container(config, resolve=True)


def test_the_count_begins_anew_for_each_configuration():
    config = OmegaConf.create({"a": "x", **{f"b{number}": "${a}" for number in range(600)}})
    assert MOST_REFERENCES < 1200
    for _ in range(2):
        count_references_anew()
        OmegaConf.to_container(config, resolve=True)
