"""Child processes, signals and ranks; imports core alone."""
