"""One library's own way to carry a directory, run by the rivals' interpreter as a program of its own:

    python sync_library.py boto3|awscrt|obstore|s3torchconnector up|down DIRECTORY BUCKET PREFIX

The endpoint is AWS_ENDPOINT_URL_S3. Parts have 16 MiB, as everywhere in this comparison.
"""

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PART = 16 << 20
AT_ONCE = 64
ENDPOINT = os.environ["AWS_ENDPOINT_URL_S3"]
REGION = os.environ.get("AWS_REGION", "us-east-1")

Pair = tuple[Path, str]


def boto3_transfers(pairs: Iterable[Pair], bucket: str, up: bool) -> None:
    import boto3
    from boto3.s3.transfer import TransferConfig, create_transfer_manager
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=AT_ONCE, s3={"addressing_style": "path"}))
    chosen = TransferConfig(
        multipart_threshold=PART,
        multipart_chunksize=PART,
        max_concurrency=16,
        preferred_transfer_client="classic",
    )
    with create_transfer_manager(client, chosen) as manager:
        futures = [
            manager.upload(str(path), bucket, key) if up else manager.download(bucket, key, str(path))
            for path, key in pairs
        ]
        for future in futures:
            future.result()


def bare_awscrt(pairs: Iterable[Pair], bucket: str, up: bool) -> None:
    from awscrt import auth, http, io, s3

    url = urlsplit(ENDPOINT)
    loops = io.EventLoopGroup()
    bootstrap = io.ClientBootstrap(loops, io.DefaultHostResolver(loops))
    credentials = auth.AwsCredentialsProvider.new_default_chain(bootstrap)
    client = s3.S3Client(
        bootstrap=bootstrap,
        region=REGION,
        tls_mode=s3.S3RequestTlsMode.DISABLED,
        signing_config=s3.create_default_s3_signing_config(region=REGION, credential_provider=credentials),
        part_size=PART,
        throughput_target_gbps=10.0,
    )
    room, errors = threading.Semaphore(AT_ONCE), []

    def done(error: Any = None, **_: Any) -> None:
        if error is not None:
            errors.append(error)
        room.release()

    for path, key in pairs:
        room.acquire()
        headers = http.HttpHeaders([("Host", url.netloc)])
        if up:
            headers.set("Content-Length", str(path.stat().st_size))
            client.make_request(
                type=s3.S3RequestType.PUT_OBJECT,
                request=http.HttpRequest("PUT", f"/{bucket}/{key}", headers),
                send_filepath=str(path),
                checksum_config=s3.S3ChecksumConfig(
                    s3.S3ChecksumAlgorithm.CRC64NVME, s3.S3ChecksumLocation.TRAILER
                ),
                on_done=done,
            )
        else:
            client.make_request(
                type=s3.S3RequestType.GET_OBJECT,
                request=http.HttpRequest("GET", f"/{bucket}/{key}", headers),
                recv_filepath=str(path),
                checksum_config=s3.S3ChecksumConfig(validate_response=True),
                on_done=done,
            )
    for _ in range(AT_ONCE):
        room.acquire()
    if errors:
        raise errors[0]


def obstore_calls(pairs: Iterable[Pair], bucket: str, up: bool) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=ENDPOINT, region=REGION, client_options={"allow_http": True})

    async def one(path: Path, key: str) -> None:
        if up:
            if path.stat().st_size <= PART:
                await obstore.put_async(store, key, path.read_bytes(), use_multipart=False)
            else:
                await obstore.put_async(store, key, path, chunk_size=PART, max_concurrency=16)
            return
        size = sizes.get(key, 0)
        if size <= PART:
            path.write_bytes(bytes(await (await obstore.get_async(store, key)).bytes_async()))
            return
        with path.open("wb") as file:
            descriptor = file.fileno()

            async def part(start: int) -> None:
                end = min(start + PART, size)
                async with parts:
                    body = await obstore.get_range_async(store, key, start=start, end=end)
                    await asyncio.to_thread(os.pwrite, descriptor, memoryview(body), start)

            await asyncio.gather(*(part(start) for start in range(0, size, PART)))

    sizes: dict[str, int] = {}
    parts = asyncio.Semaphore(16)

    async def everything() -> None:
        rest = iter(list(pairs))

        async def worker() -> None:
            for path, key in rest:
                await one(path, key)

        large = not sizes or max(sizes.values()) > PART
        await asyncio.gather(*(worker() for _ in range(4 if large and not many else AT_ONCE)))

    pairs = list(pairs)
    many = len(pairs) > 1000
    if not up:
        prefix = pairs[0][1].rpartition("/")[0] + "/"
        for page in obstore.list(store, prefix=prefix):
            sizes.update((meta["path"], meta["size"]) for meta in page)
    asyncio.run(everything())


def s3torchconnector_checkpoints(pairs: Iterable[Pair], bucket: str, up: bool) -> None:
    from s3torchconnector import S3Checkpoint, S3ClientConfig

    config = S3ClientConfig(force_path_style=True, part_size=PART)
    checkpoint = S3Checkpoint(region=REGION, endpoint=ENDPOINT, s3client_config=config)

    def one(pair: Pair) -> None:
        path, key = pair
        url = f"s3://{bucket}/{key}"
        if up:
            with path.open("rb") as source, checkpoint.writer(url) as target:
                shutil.copyfileobj(source, target, PART)
        else:
            with checkpoint.reader(url) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, PART)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, pairs))


LIBRARIES: dict[str, Callable[[Iterable[Pair], str, bool], None]] = {
    "boto3": boto3_transfers,
    "awscrt": bare_awscrt,
    "obstore": obstore_calls,
    "s3torchconnector": s3torchconnector_checkpoints,
}


def main() -> None:
    library, way, directory, bucket, prefix = sys.argv[1:6]
    root, up = Path(directory), way == "up"
    if up:
        names = sorted(os.listdir(root))
    else:
        root.mkdir(parents=True)
        names = Path(sys.argv[6]).read_text(encoding="utf-8").splitlines()
    LIBRARIES[library](((root / name, f"{prefix}/{name}") for name in names), bucket, up)


if __name__ == "__main__":
    main()
