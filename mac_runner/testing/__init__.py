"""Contract suites for the authors of plug-ins, to run with pytest over their own code."""
