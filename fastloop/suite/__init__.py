"""The suite: named workloads for every loader, a result file that can be checked, and its page.

Imports config and lower floors.
"""
