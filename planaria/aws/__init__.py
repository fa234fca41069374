"""Adapters of the ports over boto3."""
