"""`execution=`: how the model's steps are executed; each option satisfies the Protocol
Execution."""
