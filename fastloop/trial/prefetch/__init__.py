"""`device_prefetch`: batches are loaded and moved to the device before the loop asks for them."""
