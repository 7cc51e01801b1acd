"""Commands of `fastloop <command>`, one module each; may import everything but fastloop.run."""
