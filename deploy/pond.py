"""Runs a subcommand of `millpond` in the driver that a cluster starts: the program for `spark-submit`."""

from millpond.cli import main

main()
