"""Explain a script that knows nothing of fastloop: run it with a probe in its DataLoaders.

The script's own processes import bootstrap, script, import_hook, children, probe, fetches, and the
recording modules of observe/. These import no more than they need.
"""
