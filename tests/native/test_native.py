import threading

import torch

from framework.native import SIGNATURES, find, num_threads


def test_all_functions_are_there_or_none():
    assert len({find(name) is None for name in SIGNATURES}) == 1


def test_the_main_thread_shares_its_calls_and_others_do_not():
    found = []
    thread = threading.Thread(target=lambda: found.append(num_threads()))
    thread.start()
    thread.join()
    assert found == [1]
    assert num_threads() == torch.get_num_threads()
