"""Training sets: frozen versions of rows with splits, made once, verified later, read in shuffled batches.

`definition` is what was asked for, `splits` says which rows are in which split, `selection` computes that over a
version of a table, `manifest` records it, `training_set` makes, opens and drops sets. `loader` reads one:
`epoch_order` is the order of its rows, `batch_formats` what a batch is.
"""
