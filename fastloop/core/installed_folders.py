"""The names of folders with installed packages."""

INSTALLED_IN = {"site-packages", "dist-packages"}
"""Names of the folders to which installers write packages; Debian's is the second."""
