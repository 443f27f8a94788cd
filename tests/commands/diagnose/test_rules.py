import re

from framework.commands.diagnose import rank_rules
from framework.commands.diagnose.rules import MODULES, verdicts_of
from framework.commands.diagnose.step_parts import TITLES
from framework.config.paths import ROOT
from framework.contracts.span import SPANS
from tests.commands.diagnose.cases import FINE, facts


def test_every_cause_has_one_rule_and_every_rule_names_parts_of_a_step():
    names = [rule.__name__ for module in MODULES for rule in module.RULES]
    assert len(set(names)) == len(names)
    assert all(set(module.PARTS) <= {*SPANS, *TITLES} for module in MODULES)


def test_a_verdict_knows_its_parts_and_keeps_its_prediction():
    verdicts = verdicts_of(facts())
    assert verdicts
    assert all(verdict.parts == ("wait",) for verdict in verdicts)
    assert all(verdict.modeled == verdict.gain for verdict in verdicts)
    assert "forward" in verdicts_of(facts(rates=FINE))[0].parts


def test_the_documentation_has_a_row_for_every_cause():
    page = (ROOT / "docs" / "bottlenecks.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]+\|[^|]+\|$", page.partition("## Seven")[0], re.MULTILINE)
    modules = (*MODULES, rank_rules)
    assert sorted(rows) == sorted(rule.__name__ for module in modules for rule in module.RULES)
