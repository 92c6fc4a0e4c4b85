"""The smallest engine that keeps the contract of adapters, as two files to copy; `tests/contract/test_new_engine.py` adds it."""
