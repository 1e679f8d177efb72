"""Objects of one recording in an object store, written with preconditions; and the settings of object stores.

The settings are the environment variables that delta-rs reads too. Thus the same URL works in pyarrow,
obstore and delta-rs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyarrow import fs

from logicalrep._extras import require
from logicalrep._text import one_line
from logicalrep.errors import ConnectionLost, RecordingError

if TYPE_CHECKING:
    import obstore
    import obstore.store

_URL: Final = re.compile(r"(s3a?|gs|az)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
"""Pattern for the URLs of object stores: scheme, bucket or container, path, query."""

_ENDPOINT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME",)
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables with credentials, for error texts; a cloud machine's own credentials also work."""

_METADATA_SERVICES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Hosts that give credentials to machines and containers."""

_RETRIES: Final = 8
"""Largest number of retries of a request, with exponential backoff."""

_RETRY_SECONDS: Final = 60.0
"""Time after which a request is not retried any more, in seconds; the recorder then begins a new session."""

_TIMEOUT_SECONDS: Final = 60.0
"""Longest time for one attempt of a request, in seconds; the upload of a large file may take longer."""

_LARGE_BYTES: Final = 8 << 20
"""Size from which the upload of a file gets a longer timeout, in bytes."""

_SLOWEST_UPLOAD: Final = 256 << 10
"""Lowest speed that the timeout allows for the upload of a large file, in bytes per second."""

_PROFILE_SECONDS: Final = 600.0
"""Seconds for which credentials of a profile are used: boto3 renews them 10 minutes before they expire."""

_CHUNK_BYTES: Final = 8 << 20
"""Minimum number of bytes that are read at once to compare the contents of objects."""


class StoreUrl(NamedTuple):
    """A URL of an object store."""

    scheme: str
    """`s3` (also for s3a), `gs` or `az`."""
    bucket: str
    path: str
    """Path in the bucket, without slashes at its ends."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}"


def parse_store_url(place: str) -> StoreUrl | None:
    """Return the parts of the URL of an object store; None for a local path or any other URI.

    A URL with credentials or a query counts as another URI, because only pyarrow understands it.
    """
    match = _URL.fullmatch(place)
    if match is None or match[4] or "@" in match[2]:
        return None
    return StoreUrl(match[1].removesuffix("a"), match[2], match[3].strip("/"))


def store_filesystem(url: StoreUrl) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's filesystem for an object store, and the path of the URL in it.

    Raises:
        RecordingError: A setting is missing.
    """
    path = f"{url.bucket}/{url.path}".rstrip("/")
    if url.scheme == "az":
        return fs.AzureFileSystem(**_azure_options(url)), path
    if url.scheme == "gs":
        return fs.GcsFileSystem(), path
    settings = _s3_settings(url)
    options: dict[str, Any] = {"retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_RETRIES)}
    if endpoint := settings.get("endpoint"):
        options["endpoint_override"] = endpoint
    region = settings.get("region") or fs.resolve_s3_region(url.bucket)
    return fs.S3FileSystem(region=region, **options), path


def uses_profile() -> bool:
    """Return whether an AWS profile gives the credentials of S3: AWS_PROFILE is set, and no access key is."""
    return bool(os.environ.get("AWS_PROFILE")) and "AWS_ACCESS_KEY_ID" not in os.environ


@cache  # called for each stored file, because each opens the store
def _credentials_of(profile: str) -> Any:
    """Return an obstore credential provider for an AWS profile; its `config` has the region.

    Raises:
        ValueError: The profile gives no credentials.
        BotoCoreError: The profile does not exist.
    """
    from boto3 import Session
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(Session(profile_name=profile), ttl=timedelta(seconds=_PROFILE_SECONDS))


def _profile_options(url: StoreUrl) -> dict[str, Any]:
    """Return obstore's options for the profile in AWS_PROFILE: credential provider and region.

    Raises:
        RecordingError: The profile does not exist, or gives no credentials.
        MissingExtraError: The package boto3 is not installed.
    """
    require("aws", "boto3")
    from botocore.exceptions import BotoCoreError

    name = os.environ["AWS_PROFILE"]
    try:
        provider = _credentials_of(name)
    except (BotoCoreError, ValueError) as error:
        raise RecordingError(
            f"{url}: the AWS profile {name} gives no credentials: {one_line(error)}; see `aws configure list`"
        ) from None
    return {"credential_provider": provider, **provider.config}


def _azure_options(url: StoreUrl) -> dict[str, Any]:
    """Return pyarrow's options for an Azure storage account."""
    account = _setting(_ACCOUNT, url)
    options: dict[str, Any] = {"account_key": os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")}
    if endpoint := os.environ.get("AZURE_STORAGE_ENDPOINT"):
        scheme, _, authority = endpoint.partition("://")
        authority = authority.partition("/")[0].removeprefix(account)  # pyarrow adds the account in front
        for kind in ("blob", "dfs"):
            options[f"{kind}_storage_scheme"] = scheme
            options[f"{kind}_storage_authority"] = authority.replace("blob.", f"{kind}.")
    return {"account_name": account, **options}


def _s3_settings(url: StoreUrl) -> Mapping[str, str]:
    """Return `endpoint` and `region` from environment variables, without those that are not set."""
    endpoint, region = _first(_ENDPOINT), _first(_REGION)
    _allows_http(endpoint, url)
    found = {"endpoint": endpoint, "region": region or ("us-east-1" if endpoint else "")}
    return {name: value for name, value in found.items() if value}


def _allows_http(endpoint: str, url: StoreUrl) -> bool:
    """Return whether an endpoint uses HTTP without encryption.

    Raises:
        RecordingError: The endpoint is not encrypted, and the settings do not allow that.
    """
    if not endpoint.startswith("http://"):
        return False
    name = {"s3": "AWS_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}[url.scheme]
    if os.environ.get(name, "").lower() not in ("true", "1"):
        raise RecordingError(
            f"{url}: the endpoint {endpoint} is not encrypted: use https://, or set {name}=true to allow http"
        )
    return True


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _setting(names: tuple[str, ...], url: StoreUrl) -> str:
    if not (value := _first(names)):
        raise RecordingError(f"{url}: a setting is missing: set the environment variable {names[0]}")
    return value


class Version(NamedTuple):
    """The version of an object, for the precondition of a write."""

    e_tag: str | None
    version: str | None


class Superseded(Exception):
    """The object does not have the version that the precondition of the write requires."""


class StoreUnavailable(ConnectionLost):
    """The object store does not answer, refuses access, or answers with errors; retryable."""


class ObjectStore:
    """The objects below a URL. Writes of the recorder have preconditions; requests are retried with backoff.

    If the answer to a request is lost, the store may have carried out the request. `create` recognizes its
    own object. After a `Superseded` error of `replace`, the caller must compare the object with the content
    to write.

    Args:
        place: The URL.

    Raises:
        RecordingError: The URL is not one of an object store, or a setting is missing.
        MissingExtraError: The package obstore is not installed.
    """

    def __init__(self, place: str) -> None:
        require("store", "obstore")
        import obstore
        from obstore.store import from_url

        url = parse_store_url(place)
        if url is None or not url.bucket:
            raise RecordingError(
                f"expected the URL of an object store, found {url or 'another path or URI'}: give "
                "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH. Give credentials and settings in "
                "environment variables"
            )
        self._url = url
        options: dict[str, Any] = {}
        self._client: Any = {}
        if url.scheme == "s3":
            options = {**(_profile_options(url) if uses_profile() else {}), **_s3_settings(url)}
            if "region" not in options:
                _setting(_REGION, url)
            self._client["allow_http"] = _allows_http(options.get("endpoint", ""), url)
        elif url.scheme == "az":
            options = {"account_name": _setting(_ACCOUNT, url)}
            self._client["allow_http"] = _allows_http(os.environ.get("AZURE_STORAGE_ENDPOINT", ""), url)
        retries: Any = {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10)},
        }
        self._connect: Any = partial(from_url, str(url), retry_config=retries, **options)
        try:
            self._store = self._open(_TIMEOUT_SECONDS)
        except obstore.exceptions.BaseError as error:
            text = str(error).partition("\n")[0]
            raise RecordingError(f"{url}: {text}: check {_CREDENTIALS[url.scheme]}") from None

    def _open(self, seconds: float) -> obstore.store.ObjectStore:
        """Return a client of the store, with a timeout of `seconds` for each attempt of a request."""
        client = self._client | {"timeout": timedelta(seconds=seconds)}
        found: obstore.store.ObjectStore = self._connect(client_options=client)
        return found

    def __str__(self) -> str:
        return str(self._url)

    @contextmanager
    def _request(self, *expected: type[Exception]) -> Iterator[None]:
        """Convert errors of obstore in the `with` block by `_error`, except the classes in `expected`."""
        import obstore

        try:
            yield
        except expected:
            raise
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            raise self._error(error) from None

    def get(self, name: str) -> tuple[bytes, Version] | None:
        """Return content and version of a small object; None if the object does not exist.

        Raises:
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        with suppress(FileNotFoundError), self._request(FileNotFoundError):
            found = obstore.get(self._store, name)
            return bytes(found.bytes()), _version(found.meta)
        return None

    def size(self, name: str) -> int | None:
        """Return the size of an object, in bytes; None if the object does not exist.

        Raises:
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        with suppress(FileNotFoundError), self._request(FileNotFoundError):
            return obstore.head(self._store, name)["size"]
        return None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the sizes of the objects below the URL whose names begin with `prefix`, by name, in order.

        Raises:
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        found: dict[str, int] = {}
        with self._request():
            for objects in obstore.list(self._store, offset=prefix or None):
                found |= {one["path"]: one["size"] for one in objects if one["path"].startswith(prefix)}
                if objects[-1]["path"] > prefix and not objects[-1]["path"].startswith(prefix):
                    break
        return found

    def put(self, name: str, content: bytes) -> None:
        """Create or replace a small object, whatever its version.

        Raises:
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        with self._request():
            obstore.put(self._store, name, content)

    def delete(self, *names: str) -> None:
        """Remove objects; a missing object is no error.

        Raises:
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        with suppress(FileNotFoundError), self._request(FileNotFoundError):
            obstore.delete(self._store, names)
            return
        for name in names if len(names) > 1 else ():  # some stores stop deleting at a missing object
            self.delete(name)

    def create(self, name: str, content: bytes | Path) -> Version:
        """Store an object that does not exist yet; return its version.

        Args:
            name: Name of the object.
            content: The content, or the path of a file that contains it. A file too is sent in one request:
                a killed multipart upload leaves parts that cost money and that no listing shows.

        Raises:
            FileExistsError: The object exists, with another content.
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        exists = obstore.exceptions.AlreadyExistsError
        with suppress(exists), self._request(exists):
            size = _size(content)
            store = self._store
            if size >= _LARGE_BYTES:
                store = self._open(_TIMEOUT_SECONDS + size / _SLOWEST_UPLOAD)
            whole: Any = content
            if isinstance(content, Path):
                with content.open("rb") as file:
                    whole = mmap(file.fileno(), size, access=ACCESS_READ)
            return _version(obstore.put(store, name, whole, mode="create"))
        if (same := self._same(name, content)) is not None:
            return same
        raise FileExistsError(f"{self}/{name}: the object exists already, with other content")

    def replace(self, name: str, content: bytes, version: Version) -> Version:
        """Replace an object that has a known version; return the new version.

        Raises:
            Superseded: The object has another version, or does not exist.
            StoreUnavailable: The store does not answer, or refuses access.
            RecordingError: The bucket does not exist.
        """
        import obstore

        known: Any = {key: value for key, value in version._asdict().items() if value is not None}
        changed = obstore.exceptions.PreconditionError, obstore.exceptions.AlreadyExistsError
        with suppress(*changed), self._request(*changed):
            return _version(obstore.put(self._store, name, content, mode=known))
        raise Superseded(
            f"{self}/{name}: the object was replaced or removed since it was read, by another writer, or by "
            "this write if the store's reply was lost: read the object again"
        )

    def _same(self, name: str, content: bytes | Path) -> Version | None:
        """Return the version of an object if its content equals `content`, otherwise None."""
        import obstore

        with suppress(FileNotFoundError), self._request(FileNotFoundError):
            found = obstore.get(self._store, name)
            if found.meta["size"] != _size(content):
                return None
            version = _version(found.meta)
            with content.open("rb") if isinstance(content, Path) else BytesIO(content) as file:
                for chunk in found.stream(min_chunk_size=_CHUNK_BYTES):
                    part = bytes(chunk)
                    if part != file.read(len(part)):
                        return None
            return version
        return None

    def _error(self, error: Exception) -> Exception:
        """Return the `StoreUnavailable` or `RecordingError` to raise for an error of obstore."""
        import obstore

        text = str(error).partition("\n")[0].partition(": <?xml")[0]
        refused = obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError
        names = _CREDENTIALS[self._url.scheme]
        # Retryable: credentials are replaced or expire, rights are granted, and a metadata service may fail.
        services = *_METADATA_SERVICES, os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if any(service in text for service in services if service):
            return StoreUnavailable(f"{self}: no credentials were found on this machine: {text}; set {names}")
        if isinstance(error, refused) or "403 Forbidden" in text:  # for a refused listing
            return StoreUnavailable(f"{self}: the store refuses access: {text}; check {names}")
        if isinstance(error, FileNotFoundError):
            return RecordingError(
                f"{self}: the bucket {self._url.bucket} or the object does not exist: check the URL"
            )
        return StoreUnavailable(f"{self}: {text}")


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _version(found: obstore.PutResult | obstore.ObjectMeta) -> Version:
    return Version(found.get("e_tag"), found.get("version"))
