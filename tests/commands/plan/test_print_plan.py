"""What ``paceline plan`` prints."""

import json
from dataclasses import replace

from framework.commands.plan.forecast import forecast
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.commands.plan.print_plan import notes, plan_json, show_plan
from tests.commands.plan.made_runs import DOUBLE, SINGLE

HOSTS = PlannedHosts(2, 2, cores=4, memory=4 * 10**9, network=1.25e9)


def test_the_figures_are_printed(capsys):
    runs = [SINGLE, DOUBLE]
    show_plan(HOSTS, runs, forecast(HOSTS, runs, 200))
    out = capsys.readouterr().out
    for words in (
        "2 ranks, 50 records each, 2 cores each",
        "forecast for 2 hosts x 2 ranks, 4 cores a host",
        "130.00 ms",
        "computing sets the pace",
        "1.5 MB a step",
        "note: the network is taken to carry its whole rate",
    ):
        assert words in out


def test_what_is_not_known_is_noted():
    hosts = replace(HOSTS, hosts=1, memory=10**6)
    plan = forecast(hosts, [SINGLE, replace(DOUBLE, validate_s=None)], 100)
    text = " ".join(notes(hosts, plan))
    assert "do not fit" in text
    assert "validation was not measured" in text
    assert "disk= is not given" in text


def test_all_figures_are_plain_values():
    plan = forecast(HOSTS, [SINGLE, DOUBLE], 200)
    result = json.loads(json.dumps(plan_json(HOSTS, [SINGLE, DOUBLE], plan)))
    assert result["forecast"]["steps"] == 5
    assert [run["ranks"] for run in result["measured"]] == [1, 2]
