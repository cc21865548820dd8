"""The routes by which a query is answered, a module each, and their chooser: running, plans and metrics ask it."""
