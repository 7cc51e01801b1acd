"""Makes jobs of a command line; the only package that knows Hydra. It imports sweep and lower."""
