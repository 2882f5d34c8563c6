"""The `Pond` that users call, its commands and diagnostics, and the wiring of concrete adapters."""
