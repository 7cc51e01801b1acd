"""`benchmark=`: the work on each batch; each option satisfies the Protocol Benchmark."""
