"""The appliance put together, and its command line."""

VERSION = "0.1.0"
