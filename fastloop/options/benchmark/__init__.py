"""`benchmark=`: what is done with each batch; each option satisfies Benchmark."""
