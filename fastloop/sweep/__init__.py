"""Schedule a sweep's jobs: rounds, resume, the machine lock, caveats, tracking.

Imports trial and lower floors.
"""
