import gc
import subprocess
import sys

import pytest

from framework.system.imports import allowed_cores, load


def output_of(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_no_garbage_is_collected_while_a_module_loads(tmp_path, monkeypatch):
    (tmp_path / "large_module.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (load("large_module").collects, gc.isenabled()) == (False, True)
    gc.unfreeze()


def test_a_broken_module_leaves_the_collection_on(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        load("broken_module")
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_the_library_of_torch_is_loaded_before_its_module():
    code = (
        "import sys, threading; from pathlib import Path\n"
        "from framework.system.imports import begin_torch\n"
        "begin_torch()\n"
        "[thread.join() for thread in threading.enumerate()[1:]]\n"
        "print('libtorch_cpu' in Path('/proc/self/maps').read_text(), 'torch' in sys.modules)"
    )
    assert output_of(code) == "True False\n"


def test_the_compiler_of_torch_is_loaded_only_to_train():
    code = "import sys, framework.run; print('torch._dynamo' in sys.modules)"
    assert output_of(code) == "False\n"
