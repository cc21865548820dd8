"""Ready-made functions of columns."""
