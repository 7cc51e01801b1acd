"""The costs and turns of FastLoader's threads that read a Dataset: FastLoader chooses between them
and the loop by these numbers, and attach predicts the gain by them."""

HANDOVER_NS, HANDOVER_SHARE = 100_000, 0.3
"""The additional time of a batch that comes from a thread: nanoseconds for its hand-over, and a
share of the time in which the loop reads it, which Python's lock and torch's redirected functions
take. Both were measured in experiments/fastloader."""
CONFIRMED = 5
"""Threads get a turn once they should have saved time for this number of batches in a row. A single
batch may be slow because a file was opened, or because the machine was busy."""
TURN = 11
"""Batches of a turn, after which the loop's time for a batch and that of the threads are compared.
After the first comparison the leading way has turns of 44 batches, after the second 176, ..."""
