"""From a command line to jobs; the only package that knows Hydra. Imports sweep and lower."""
