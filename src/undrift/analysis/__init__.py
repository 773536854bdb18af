"""Numbers from the histories of runs: no words, no drawing."""
