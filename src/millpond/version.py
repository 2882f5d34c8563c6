"""The version of this package, as it is written into claims."""

VERSION = "0.1.0"
