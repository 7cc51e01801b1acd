"""Explain a script that knows nothing of fastloop: run it with a probe in its DataLoaders.

The script's own processes import bootstrap, patch_dataloader, fetch_probe, usage_probe and the
modules on which these depend. They import no more than they need.
"""
