"""`transform=`: changes samples or batches before a step; each option satisfies the Protocol
Transform."""
