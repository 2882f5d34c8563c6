"""`python -m millpond` is `millpond`."""

from millpond.cli import main

main()
