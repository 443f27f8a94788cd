from pathlib import Path

from framework.input.video import VideoInput


def _write(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(name.encode())


def test_videos_have_the_classes_of_their_subfolders():
    _write("in/b/1.mp4", "in/a/2.MKV", "in/a/2.jpg", "in/a/x/3.avi", "in/loose.webm")
    source = VideoInput("in", None, None)
    records, keys = source.read(0, 3)
    assert keys == ["a/2.MKV", "a/x/3.avi", "b/1.mp4"]
    assert records["video"] == [b"in/a/2.MKV", b"in/a/x/3.avi", b"in/b/1.mp4"]
    assert records["label"].tolist() == [0, 0, 1]
    assert source.manifest.classes == ["a", "b"]
    assert source.manifest.fields["video"].kind == "video"
    assert "1 videos in no subfolder left out" in source.manifest.source


def test_a_pattern_finds_the_class_in_the_name():
    _write("in/v_run_g1.avi", "in/v_walk_g1.avi")
    source = VideoInput("in", None, r"v_(\w+)_g")
    assert source.manifest.classes == ["run", "walk"]
