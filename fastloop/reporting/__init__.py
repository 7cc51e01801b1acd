"""Tables, charts, verdicts and reports of results; imports core alone."""
