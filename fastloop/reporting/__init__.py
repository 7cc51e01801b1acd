"""Tables, charts, verdicts and reports of results; imports only core."""
