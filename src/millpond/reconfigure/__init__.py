"""Changing what a pond is asked while it runs: changes as records, the catalog as their fold, when each begins."""
