"""Studies: one file for each of the paper's, each a function that fills a run folder."""
