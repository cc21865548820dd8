"""The history checker: writers that log what they were told, a storm over the servers, and a judge of what is left."""
