"""Timelines: events of a loop and of its workers, and pictures of them.

Imports core only. Knows nothing of jobs: any DataLoader can be probed.
"""
