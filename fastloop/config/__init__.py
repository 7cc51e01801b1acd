"""Make the jobs of a command line. This is the only package that knows Hydra; it imports sweep and
lower floors."""
