"""What the daemon answers: probes, status and metrics on a read-only port, state-changing calls on a unix
socket.

Nothing is decided here; answers are read from the board, and calls are handed on.

Map: `app.py` endpoints of the port, `page.py` and its panels the status page, `control.py` the unix socket,
`server.py`
opening and closing both.
"""
