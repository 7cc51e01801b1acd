"""`loader=`: how samples are read and batched; each option satisfies the Protocol Loader."""
