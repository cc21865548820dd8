"""What a command for people works on: ids as they are typed, profiles, and the catalog, on a server or here."""
