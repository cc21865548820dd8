"""SQL fragments in requests: parse them, allow known functions only, bound what they can produce."""
