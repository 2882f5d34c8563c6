"""What is remembered: segments, slices, the event log and the store that mirrors them."""
