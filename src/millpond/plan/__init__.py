"""Plans how all queries of a pond are computed together; pure functions over values."""
