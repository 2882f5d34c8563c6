"""How all queries are answered together; pure."""
