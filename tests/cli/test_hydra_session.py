import os

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra

from framework.cli.guard import GuardedLoader
from framework.cli.hydra_session import hydra_session, slug
from tests.cli.test_names import OUT


def test_hydra_composes_through_the_guard_inside_the_block():
    with hydra_session("train") as hydra:
        assert isinstance(GlobalHydra.instance().config_loader(), GuardedLoader)
        assert hydra is GlobalHydra.instance().hydra
        assert compose("train", ["epochs=3"]).epochs == 3
    assert not GlobalHydra.instance().is_initialized()


def test_every_folder_is_read_with_checks():
    with hydra_session("train", "mine") as hydra:
        sources = {source.provider: source.scheme() for source in hydra.config_loader.get_sources()}
    folders = {sources[name] for name in ("main", "paceline", "command-line")}
    assert folders == {"paceline"}
    assert "file" not in sources.values()


@pytest.mark.parametrize("name", OUT, ids=lambda name: ascii(name)[:20])
def test_the_directory_of_a_job_stays_in_its_sweep(name):
    folder = f"0-{slug(f'source={name}')}"
    assert os.path.basename(os.path.normpath(folder)) == folder
    os.mkdir(folder)
