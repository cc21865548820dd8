"""Refresh views: what a view's source lost and gained, and the view's rows of that; in Spark or a server's worker."""
