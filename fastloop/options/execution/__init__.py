"""`execution=`: how the model's steps are executed; each option satisfies Execution."""
