"""A declared step on this side: the arena, buffers and readiness, requests and reports, and what a restart asks for."""
