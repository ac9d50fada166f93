"""How a call reaches the daemon: addresses, sockets, WebSocket frames, requests and their answers, and the handshake.

Nothing here knows what a step, a tensor or a job is.
"""
