"""`gradsync status --watch`: a daemon's jobs on a terminal, anew every second. `rich` draws (the extra `watch`)."""
