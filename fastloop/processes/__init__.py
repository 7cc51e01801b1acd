"""Start, watch and end child processes, handle signals, and join ranks; imports only core."""
