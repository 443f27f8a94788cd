import threading

import pytest

from framework.sink import outbox as module
from framework.sink.outbox import MOST_EVENTS, Delivery, Outbox, StartOver
from framework.system import run_dir
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
    monkeypatch.setattr(run_dir, "_names", {"TOKEN"})
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


def test_a_disk_that_takes_a_part_of_an_event_costs_only_this_one(tmp_path):
    fill(tmp_path, 2)
    box = Outbox(tmp_path, "mlflow")
    with small_disk(box.path.stat().st_size + 5), pytest.raises(OSError, match="No space"):
        box.append({"report": "train", "step": 4})
    box.append({"report": "train", "step": 6})
    assert steps(box.waiting().events) == [2, 6]
    box.close()


# The thread


class Notebook:
    """A tracker that keeps what it is sent, and fails as often as it is asked to."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.steps = []
        self.closed = False
        self.has_tried = threading.Event()

    def prepare(self, outbox, checkpoints):
        outbox.state["checkpoints"] = checkpoints

    def send(self, outbox, events):
        self.has_tried.set()
        if self.failures:
            raise self.failures.pop(0)
        self.steps += [event["step"] for event in events]

    def close(self):
        self.closed = True


@pytest.fixture
def box(tmp_path):
    box = Outbox(tmp_path, "notes", 0)
    yield box
    box.close()


def deliver(box, tracker, said, close_s=30.0):
    return Delivery(box, tracker, name="notes", every_s=0.01, close_s=close_s, say=said.append)


def test_everything_is_sent_before_it_closes(box):
    notebook, said = Notebook(), []
    sending = deliver(box, notebook, said)
    for step in range(500):
        box.append({"step": step})
    sending.close()
    assert (notebook.steps, notebook.closed, said) == (list(range(500)), True, [])


def test_a_server_that_comes_back_gets_everything_and_one_warning_was_said(box, monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    lost = ConnectionRefusedError(111, "Connection refused")
    notebook, said = Notebook(lost, lost, lost), []
    box.append({"step": 1})
    sending = deliver(box, notebook, said)
    while not notebook.steps:
        notebook.has_tried.wait()
    sending.close()
    assert notebook.steps == [1]
    assert len(said) == 1
    assert "notes cannot be reached (Connection refused); training continues" in said[0]


def test_what_remains_is_counted_and_kept_with_the_command_that_sends_it(box, tmp_path):
    notebook, said = Notebook(*[OSError(113, "No route to host")] * 9), []
    box.append({"step": 1})
    box.append({"step": 2})
    deliver(box, notebook, said).close()
    what = (
        "2 events could not be sent (No route to host); they are kept, "
        f"send them with: paceline runs send {tmp_path}"
    )
    assert said[-1] == f"notes: {what}"
    assert Outbox(tmp_path, "notes").num_waiting() == 2


def test_a_server_without_an_answer_is_not_waited_for(box):
    answer = threading.Event()

    class Silent(Notebook):
        def send(self, outbox, events):
            answer.wait()

    said = []
    box.append({"step": 1})
    deliver(box, Silent(), said, close_s=0.1).close()
    answer.set()
    assert "1 events could not be sent (no answer within 0.1 s)" in said[0]


def test_reports_that_are_no_longer_true_are_all_sent_again(box):
    notebook, said = Notebook(StartOver()), []
    box.append({"step": 1})
    box.mark_sent(box.waiting().end)
    box.append({"step": 2})
    deliver(box, notebook, said).close()
    assert (notebook.steps, said) == ([1, 2], [])
