"""What the admission webhook makes of a pod: the sidecar's shape, declared once, and how a pod is changed to it.

Map: `shape.py` the sidecar's container and volumes, `budgets.py` the sums behind every probe and deadline; `options.py` what
annotations may say; `engine.py` which container is the engine and how it is started; `mutation.py` a pod with the sidecar;
`patch.py` the difference as JSON Patch; `review.py` the API server's question and our answer; `certificates.py` and
`keeping.py` the webhook's own certificate. Nothing listens here: that is `web/admission.py`.
"""
