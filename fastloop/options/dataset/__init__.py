"""`dataset=`: the source of the samples; each option satisfies the Protocol Dataset."""
