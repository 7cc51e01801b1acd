"""`model=`: the network that training and inference run; each option satisfies the Protocol
Model."""
