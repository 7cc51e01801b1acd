"""What people read of results: the terminal's table, and the report as a page and as Markdown."""
