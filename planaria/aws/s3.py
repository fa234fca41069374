"""The Objects port on S3."""

from typing import Any

from planaria.aws.errors import translated


class S3Objects:
    """client: a boto3 s3 client; bucket: its name."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def put(self, key: str, body: bytes) -> None:
        with translated():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        with translated():
            return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())
