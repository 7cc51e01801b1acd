"""The suite: named workloads for every loader, a result file that can be checked, and its page.

The package imports only `config` and the packages below it in the order of docs/architecture.md.
"""
