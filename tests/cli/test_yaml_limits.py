from pathlib import Path

import pytest

from framework.cli.yaml_limits import MOST_BYTES, count_nodes, read_text
from framework.errors import ConfigError


def check_yaml(path):
    return count_nodes(path, read_text(path))


@pytest.mark.parametrize(
    "text", ["a: 1", "a: [1, {b: c}]", "", "a: &x {b: 1}\nc: [*x, *x]", "a: !!str 1", "<<: {a: 1}"]
)
def test_plain_files_are_counted(text):
    Path("x.yaml").write_text(text)
    assert check_yaml("x.yaml") < 20


@pytest.mark.parametrize("count", [100, 5000])
def test_values_are_counted_with_aliases_followed(count):
    Path("x.yaml").write_text(f"a: &a [{', '.join(['1'] * count)}]\nb: *a\n")
    if count == 100:
        assert check_yaml("x.yaml") == 2 * (count + 1) + 3
    else:
        with pytest.raises(ConfigError, match=r"C114.*10,000 values"):
            check_yaml("x.yaml")


def test_what_is_just_small_enough_is_read():
    Path("x.yaml").write_bytes(b"#" * MOST_BYTES)
    assert check_yaml("x.yaml") == 0
    Path("x.yaml").write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(ConfigError, match="C114"):
        check_yaml("x.yaml")
