"""The API server and what is told to Kubernetes: pod facts, conditions, Events, the admission webhook's decisions.

The engine, the caches and the network port are other rooms; this one decides nothing about readiness.
"""
