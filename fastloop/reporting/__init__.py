"""Write the results of jobs as tables, charts, verdicts and reports; imports only `core`."""
