"""A rank's place at the daemon: what is said first on each connection, and how a rank is attached again."""
