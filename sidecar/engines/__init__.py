"""Clients of inference engines behind one small protocol; the only room that speaks HTTP to engines.

Holds no policy: what an answer means for readiness or warm-up is decided above.
"""
