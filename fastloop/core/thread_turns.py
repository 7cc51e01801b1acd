"""The costs and turns of FastLoader's threads that read a Dataset: FastLoader chooses between them
and the loop by these numbers, and attach predicts the gain by them."""

HANDOVER_NS, HANDOVER_SHARE = 100_000, 0.3
"""The cost of a batch that comes from a thread: for its hand-over, and as a share of the time that
reading it takes in the loop. Python's lock, and torch's redirected functions, take it. Measured in
experiments/fastloader."""
CONFIRMED = 5
"""Threads get a turn once they should have saved time for this number of batches in a row. A single
batch may be slow because a file was opened, or because the machine was busy."""
TURN = 11
"""Batches of a turn, after which the loop's time for a batch and that of the threads are compared.
After the first comparison the leading way has turns of 44 batches, after the second 176, ..."""
