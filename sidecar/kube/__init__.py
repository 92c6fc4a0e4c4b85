"""The API server and what is told to Kubernetes: pod facts, conditions, Events, the admission webhook's decisions.

The engine, the caches and the network port are other rooms; this one decides nothing about readiness.

Map: `account.py` who asks, `api.py` the client and its errors, `rights.py` what each feature may do; `own_pod.py` the Pod
as last read, `pod_object.py` its fields, `pod_checks.py` what is wrong with it, `review.py` what `check` asks;
`condition.py` and `gate_writer.py` the readiness gate, `events.py` and `event_writer.py` Events, `budget.py` how many
writes; `facts.py` what Pod and Node tell about an engine, `group.py` several pods that run one; `injection/` the webhook.
"""
