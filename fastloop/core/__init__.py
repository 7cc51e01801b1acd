"""Types, Protocols, results, the clock, statistics and files; imports no other subpackage."""
