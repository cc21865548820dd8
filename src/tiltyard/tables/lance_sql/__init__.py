"""SQL fragments in requests, which Lance plans: parse them, allow known functions only, bound what they can produce."""
