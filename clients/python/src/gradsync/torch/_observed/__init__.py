"""One rank of `gradsync observe`: observes the clip calls of an unchanged script, and keeps a tally."""
