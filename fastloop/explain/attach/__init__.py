"""Explain a script that knows nothing of fastloop: run it with a probe in its DataLoaders.

The modules that the script's own processes import (bootstrap, script, import_hook, children, probe,
fetches, and those of timeline/ that record) import no more than they need.
"""
