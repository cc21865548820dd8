"""The bundled sample: films with embeddings, to search before there are tables of one's own.

The facts and sentences of `films.jsonl` were written for this project; `vectors.npy` was made of them by
`scripts/make_sample.py`, with the model of the package `wordllama`, which reading it does not need.
"""
