"""Prefetch batches for `device_prefetch`: load and move them before the loop asks for them.

There is one module for each value of `device_prefetch_by`: stream, thread and process.
"""
