"""The Scheduler port for Kubernetes on EKS. Standard library only; boto3 clients come in from outside."""
