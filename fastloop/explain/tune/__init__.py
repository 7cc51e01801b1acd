"""The fastest settings for a loop: candidates, a race among them, and a confirmed gain."""
