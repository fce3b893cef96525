"""The subcommands of `eagleray`; each imports what it runs only when it runs."""
