"""Commands of `fastloop <command>`, one module each, and modules that these commands share.

They may import every module of the package but fastloop.run.
"""
