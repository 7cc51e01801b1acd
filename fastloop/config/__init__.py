"""Turn a command line into the jobs to measure.

Only this package imports Hydra and OmegaConf. It may import `fastloop.sweep` and every package that
docs/architecture.md lists below it.
"""
