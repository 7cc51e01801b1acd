"""Turn a command line into the jobs to measure.

Only this package imports Hydra and OmegaConf. It imports `fastloop.sweep` and packages that
docs/architecture.md lists below `sweep`.
"""
