"""The version of the client, and of the protocol it speaks."""

__version__ = "0.1.0"

PROTOCOL = 1
SUBPROTOCOL = "gradsync.v1.jsonrpc"
