"""One rank of `gradsync audit`: finds the model of a script, measures its gradients and writes what it saw."""
