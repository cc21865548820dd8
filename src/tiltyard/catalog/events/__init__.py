"""Operations on events: the latest ones that a caller may see, the sinks that get them, and what those did not take."""
