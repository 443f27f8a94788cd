import numpy as np

from sines import arrays

np.savez("train.npz", **arrays(4000, seed=0))
np.savez("val.npz", **arrays(500, seed=1))
