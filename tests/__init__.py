"""The tests, in several processes that share the cores."""

import os

# Threads of OpenMP that spin while they wait take the core from the thread that they wait for. A
# training command then takes 3 to 10 times as long. The library reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# torch.compile compiles in the test's own process, and so leaves none behind.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
