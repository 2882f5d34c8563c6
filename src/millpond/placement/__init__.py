"""Where state and work live: pure decisions over values."""
