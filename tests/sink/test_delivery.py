import threading

import pytest

from framework.sink import delivery as module
from framework.sink.delivery import Delivery, StartOver
from framework.sink.outbox import Outbox


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
