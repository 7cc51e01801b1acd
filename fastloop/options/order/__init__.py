"""`order=`: the order in which an epoch reads the samples; each option satisfies the Protocol
Order."""
