"""Timelines: events of a loop and of its workers, and pictures of them.

The package imports only core and knows nothing of jobs: any DataLoader can be probed.
"""
