"""One page about runs, sweeps and benches, made from the files that they left.

Never loads torch.
"""
