"""Which settings are fastest for a loop: candidates, a race among them, and a confirmed gain."""
