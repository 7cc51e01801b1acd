"""Constants by which FastLoader decides whether its threads or the loop itself read a Dataset, and
by which attach predicts the gain."""

HANDOVER_NS, HANDOVER_SHARE = 100_000, 0.3
"""The additional time of a batch that comes from a thread: nanoseconds for its hand-over, and a
share of the time in which the loop would work to read the batch, without its waits. Python's lock
and torch's redirected functions take this share. Both were measured in experiments/fastloader."""
CONFIRMED = 5
"""Threads get a turn once they would have saved time for this number of batches in a row. A single
batch may be slow because a file was opened, or because the machine was busy."""
TURN = 11
"""Batches of a turn, after which the loop's time for a batch is compared with the threads' time.
The way that all comparisons so far favour then has a longer turn: of 44 batches after the first
comparison, of 176 after the second, ..."""
