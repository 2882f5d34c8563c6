"""Changes of a running pond: change records, the catalog computed from them, and from when on each change holds."""
