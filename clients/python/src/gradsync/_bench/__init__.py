"""`gradsync bench`: what steps take on this node, beside the least that its memory and its sockets allow."""
