"""Stores, batches and digests of datasets; imports fastloader, reporting, processes and core."""
