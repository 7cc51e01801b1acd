"""Charts of one benchmark: matplotlib figures (without pyplot) from the rows of a comparison."""
