"""Child processes, signals and ranks; imports only core."""
