"""Batches that are loaded and moved before the loop asks for them (`device_prefetch`), and the
page-locked buffers that they may go through (`pinned_buffers`)."""
