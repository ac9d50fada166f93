"""How a call reaches the daemon: sockets, WebSocket frames, requests and their answers, connections that are lost.

Nothing here knows what a session, a step, a tensor or a job is.
"""
