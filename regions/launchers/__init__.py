"""Start and stop backends: processes of this machine, Deployments of Kubernetes.

`gateway` may import it.
"""
