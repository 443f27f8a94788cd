from framework.parallel.launch.ranks import under_launcher


def test_the_environment_says_whether_a_launcher_is_there(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not under_launcher()
    monkeypatch.setenv("RANK", "3")
    assert not under_launcher()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert under_launcher()
