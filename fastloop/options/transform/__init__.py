"""`transform=`: applied to samples or batches before the step; each option satisfies Transform."""
