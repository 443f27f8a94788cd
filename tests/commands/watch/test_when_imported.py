"""An action waits for the import of a module."""

import sys

from framework.commands.watch.when_imported import when_imported


def test_the_action_follows_the_import(tmp_path, monkeypatch):
    (tmp_path / "some_module.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    when_imported("some_module", lambda: seen.append(sys.modules["some_module"].VALUE))
    assert seen == []
    import some_module

    assert seen == [1]
    assert type(some_module.__loader__).__name__ == "SourceFileLoader"
    assert not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path)
    when_imported("some_module", lambda: seen.append(2))
    assert seen == [1, 2]
    del sys.modules["some_module"]
