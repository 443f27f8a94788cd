"""One page about runs, sweeps and benches, made from the files they left. Never imports torch."""
