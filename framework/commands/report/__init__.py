"""One page about runs, sweeps and benches, made from their files without torch."""
