"""A run's folder in the bucket (or on a disk that this machine shares with the job): read it, remove it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ops.errors import CommandError

RESULTS = ("summary.json", "metrics.jsonl")


def fetch(uri: str, target: Path) -> None:
    """Copy a run's summary.json and metrics.jsonl from `uri` (s3://bucket/runs/name, or a folder) to `target`.

    Raises:
        CommandError: naming the file that is not there or may not be read.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (target / name).write_bytes(_read_object(uri, name) if uri.startswith("s3://") else _read_file(uri, name))


def read(uri: str, name: str, last_bytes: int | None = None) -> bytes | None:
    """A file of a run's folder, or its `last_bytes`; None where there is no such file.

    Raises:
        CommandError: naming the file that may not be read.
    """
    if not uri.startswith("s3://"):
        return _read_local(Path(uri.removeprefix("file://")) / name, last_bytes)
    from botocore.exceptions import BotoCoreError, ClientError

    from ops.aws import error_code, trouble

    bucket, prefix = _parts(uri)
    part = {"Range": f"bytes=-{last_bytes}"} if last_bytes else {}
    try:
        return _s3().get_object(Bucket=bucket, Key=f"{prefix}/{name}", **part)["Body"].read()
    except (BotoCoreError, ClientError) as error:
        if error_code(error) in ("NoSuchKey", "InvalidRange"):  # the latter of an empty file
            return None
        raise CommandError(f"{uri}/{name} cannot be read: {trouble(error)}") from None


def remove(uri: str) -> None:
    """Delete a run's folder with its checkpoints; nothing is well.

    Raises:
        CommandError: if it may not be deleted.
    """
    if not uri.startswith("s3://"):
        shutil.rmtree(uri, ignore_errors=True)
        return
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, prefix = _parts(uri)
    try:
        s3: Any = boto3.resource("s3")
        s3.Bucket(bucket).objects.filter(Prefix=f"{prefix}/").delete()
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"{uri} cannot be removed: {error}") from None


def _s3() -> Any:
    """A client that answers or gives up within seconds."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(connect_timeout=3, read_timeout=20,
                                            retries={"mode": "standard", "total_max_attempts": 3}))


def _read_local(path: Path, last_bytes: int | None) -> bytes | None:
    try:
        with path.open("rb") as stream:
            if last_bytes:
                stream.seek(max(0, path.stat().st_size - last_bytes))
            return stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def _read_object(uri: str, name: str) -> bytes:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, prefix = _parts(uri)
    try:
        return boto3.client("s3").get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"{uri}/{name} cannot be read: {error}; are these the credentials of the account that "
                           "the job ran in? (aws sts get-caller-identity)") from None


def _read_file(uri: str, name: str) -> bytes:
    path = Path(uri.removeprefix("file://")) / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}; the job's storage must be a bucket, or a folder that this "
                           "machine sees too") from None


def _parts(uri: str) -> tuple[str, str]:
    found = urlsplit(uri)
    return found.netloc, found.path.strip("/")
