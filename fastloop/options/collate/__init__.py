"""`collate=`: how samples are combined into a batch; each option satisfies the Protocol Collate."""
