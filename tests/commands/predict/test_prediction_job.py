"""Names of pictures; ``test_predict`` has the rest of the job."""

from framework.commands.predict.prediction_job import picture_name


def test_a_name_that_is_taken_gets_a_number():
    taken: set[str] = set()
    for name in ("a.png", "a-3.png", "a-3-2.png", "a-3-3.png"):
        assert picture_name("a.jpg", 3, taken) == name
        taken.add(name)


def test_records_of_one_file_anywhere_have_pictures_of_their_own():
    taken: set[str] = set()
    for key in ("/data/a.tif", "/data/a.tif#1", "/data/a.tif#2"):
        taken.add(picture_name(key, 5, taken))
    assert taken == {"000000005.png", "000000005-5.png", "000000005-5-2.png"}


def test_a_key_does_not_lead_out_of_the_folder():
    for key in ("../a.jpg", "/etc/a.jpg", "", "x/../../a.png", "a\0.png", ".", "x" * 300):
        assert picture_name(key, 7, set()) == "000000007.png"
