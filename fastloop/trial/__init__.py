"""Measure a job in one process: timed window, limits, page cache, prefetching.

Imports options and lower floors.
"""
