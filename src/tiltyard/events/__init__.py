"""Events of the catalog for others: their form, what of them a sink gets, how they are signed, and who sends them."""
