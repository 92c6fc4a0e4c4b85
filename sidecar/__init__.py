"""warmup-sidecar: start LLM inference engines warm, and let a pod be ready only when it is.

Holds the version and nothing else; behaviour lives in the rooms below this package.
"""

__version__ = "0.1.0"
