"""Ready-made functions of columns: chunks, vectors, languages, quality and personal data of texts, and images.

Each is an ordinary function: `films.add_column("vector", embed_text(model="wordllama"), inputs="description")`.
"""

from tiltyard.functions.chunkers import chunk_markdown, chunk_sentences, chunk_tokens, chunk_words
from tiltyard.functions.embeddings import embed_text
from tiltyard.functions.image_embeddings import embed_image
from tiltyard.functions.images import decode_image, describe_image, hash_image, resize_image
from tiltyard.functions.languages import detect_language
from tiltyard.functions.pii import find_pii, mask_pii
from tiltyard.functions.quality import measure_text
from tiltyard.functions.ready_made import ReadyMade, list_functions

__all__ = [
    "ReadyMade",
    "chunk_markdown",
    "chunk_sentences",
    "chunk_tokens",
    "chunk_words",
    "decode_image",
    "describe_image",
    "detect_language",
    "embed_image",
    "embed_text",
    "find_pii",
    "hash_image",
    "list_functions",
    "mask_pii",
    "measure_text",
    "resize_image",
]
