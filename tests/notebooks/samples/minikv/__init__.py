"""Stands in for the package while the pipeline is tested: a kernel of the sample imports this."""
