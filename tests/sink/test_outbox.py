import pytest

from framework.sink.outbox import MOST_EVENTS, Outbox
from framework.system import redaction
from tests.small_disk import small_disk


def fill(folder, *steps, sent=0):
    """Fill an outbox with a report at each step, and mark the first ``sent`` as sent."""
    box = Outbox(folder, "mlflow", 0)
    for step in steps:
        box.append({"report": "train", "step": step})
    for _ in range(sent):
        batch = box.waiting()
        box.mark_sent(box.sent + len(b'{"report": "train", "step": 1}\n'))
        assert batch.events
    box.close()


def steps(events):
    return [event["step"] for event in events]


def test_events_wait_until_they_are_sent_also_for_the_next_process(tmp_path):
    fill(tmp_path, 1, 2, 3, sent=1)
    box = Outbox(tmp_path, "mlflow")
    batch = box.waiting()
    assert (steps(batch.events), box.num_waiting()) == ([2, 3], 2)
    box.mark_sent(batch.end)
    assert not Outbox(tmp_path, "mlflow").waiting().events


def test_values_of_the_environment_wait_under_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(redaction, "_names", {"TOKEN"})
    monkeypatch.setenv("TOKEN", "hunter2")
    box = Outbox(tmp_path, "mlflow", 0)
    box.append({"end": "cannot reach hunter2@host"})
    assert box.waiting().events == [{"end": "cannot reach ${oc.env:TOKEN}@host"}]
    box.close()


def test_a_batch_has_a_limit(tmp_path):
    fill(tmp_path, *range(MOST_EVENTS + 5))
    box = Outbox(tmp_path, "mlflow")
    batch = box.waiting()
    assert len(batch.events) == MOST_EVENTS
    box.mark_sent(batch.end)
    assert len(box.waiting().events) == 5


def test_a_resumed_run_drops_what_came_after_its_step(tmp_path):
    fill(tmp_path, 2, 4, 6)
    box = Outbox(tmp_path, "mlflow", 4)
    assert steps(box.waiting().events) == [2, 4]
    assert box.ahead == []


@pytest.mark.parametrize("torn", [b'{"step": 4', b"\0\0\n", b"[1]\n", b"9" * 5000 + b"\n"])
def test_a_torn_line_costs_no_other(tmp_path, torn):
    fill(tmp_path, 2)
    with open(tmp_path / "outbox" / "mlflow.jsonl", "ab") as file:
        file.write(torn)
    box = Outbox(tmp_path, "mlflow", 9)
    box.append({"report": "train", "step": 6})
    assert steps(box.waiting().events) == [2, 6]
    box.close()


def test_an_event_behind_a_torn_line_has_its_own(tmp_path):
    fill(tmp_path, 2)
    with open(tmp_path / "outbox" / "mlflow.jsonl", "ab") as file:
        file.write(b'{"step": 4')
    box = Outbox(tmp_path, "mlflow")
    for step in (6, 8):
        box.append({"report": "train", "step": step})
    assert steps(box.waiting().events) == [2, 6, 8]
    assert box.num_waiting() == 3
    box.close()


def test_a_disk_that_takes_a_part_of_an_event_costs_only_this_one(tmp_path):
    fill(tmp_path, 2)
    box = Outbox(tmp_path, "mlflow")
    with small_disk(box.path.stat().st_size + 5), pytest.raises(OSError, match="No space"):
        box.append({"report": "train", "step": 4})
    box.append({"report": "train", "step": 6})
    assert steps(box.waiting().events) == [2, 6]
    box.close()
