"""What a bucket's answers mean: an error number and a clause for people, from whatever its client raised.

Nothing is asked of a bucket here. Codes are those of the Amazon S3 API Reference ("Error responses"), of Cloud Storage's XML
API and of Azure's Blob service.
"""

from __future__ import annotations

import errno
import re

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_ROLE = "or give the pod's service account a role"
#: How the client calls a server in its errors: what to give to it, and where to look for its address.
_SERVERS = {
    "GCS": (f"name the key file of a service account in GOOGLE_APPLICATION_CREDENTIALS, {_ROLE}", ""),
    "MicrosoftAzure": (
        f"set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, {_ROLE}",
        " (AZURE_STORAGE_ACCOUNT_NAME)",
    ),
    "S3": (f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, {_ROLE}", " (AWS_ENDPOINT_URL)"),
}
_SERVER = re.compile(r'Generic (\w+) error|store: "(\w+)"|(googleapis\.com)|(\.core\.windows\.net)')
# code: error number, and a clause
_CODES: dict[str, tuple[int, str]] = {
    "NoSuchBucket": (errno.ENODEV, "there is no such bucket; make it, or correct WARMUP_STORE"),
    "InvalidBucketName": (errno.ENODEV, "that is no name of a bucket; correct WARMUP_STORE"),
    "ContainerNotFound": (errno.ENODEV, "there is no such container; make it, or correct WARMUP_STORE"),
    "InvalidAccessKeyId": (errno.EACCES, "it does not know this access key; correct AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": (
        errno.EACCES,
        "the secret key is not the one of this access key; correct AWS_SECRET_ACCESS_KEY",
    ),
    "ExpiredToken": (errno.EACCES, "the credentials have expired; renew them"),
    "InvalidToken": (errno.EACCES, "it does not accept the session token; renew the credentials"),
    "RequestTimeTooSkewed": (
        errno.ETIME,
        "this node's clock and the bucket's differ by more than it allows; set the clock (NTP)",
    ),
    "AccessDenied": (
        errno.EACCES,
        "these credentials are not allowed to do that; allow them to list, read, write and delete there",
    ),
    "AllAccessDisabled": (errno.EACCES, "its owner has closed it; use another bucket"),
    "PermanentRedirect": (errno.EXDEV, "it is in another region; set AWS_REGION"),
    "AuthorizationHeaderMalformed": (errno.EXDEV, "it is in another region; set AWS_REGION"),
    "NotImplemented": (errno.ENOSYS, "its server can't do that; use one with conditional writes (If-None-Match)"),
    "QuotaExceeded": (errno.ENOSPC, "its quota is used up"),
    "XMinioStorageFull": (errno.ENOSPC, "its server's disk is full"),
    "SlowDown": (errno.EBUSY, "it asks for fewer requests, again and again; try later, or ask for more of them"),
    "ServiceUnavailable": (errno.EBUSY, "it is overloaded or down; try later"),
    "InternalError": (errno.EIO, "it fails again and again; look at its server"),
    "BadDigest": (errno.EIO, "what arrived was not what was sent, again and again; look at the network"),
}
_CODES["RequestExpired"] = _CODES["RequestTimeTooSkewed"]
_CODES["InvalidSecurity"] = _CODES["AccessDenied"]
_CODES["XAmzContentSHA256Mismatch"] = _CODES["XAmzContentChecksumMismatch"] = _CODES["BadDigest"]
_STATUSES: dict[str, tuple[int, str]] = {
    "301": _CODES["PermanentRedirect"],
    "403": (errno.EACCES, "these credentials, or this node's clock, are not accepted; check both"),
    "500": _CODES["InternalError"],
    "501": _CODES["NotImplemented"],
    "503": _CODES["ServiceUnavailable"],
    "507": (errno.ENOSPC, "its server's disk is full"),
}


def explained(error: Exception) -> OSError:
    """Make an OSError of what a client raised, with a clause as its text; those of Python itself stay as they are."""
    if isinstance(error, OSError):
        return error
    kind, said = type(error).__name__, str(error)
    keys, address = _SERVERS[_server(said)]
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return FileExistsError(errno.EEXIST, "it is there already")
    if "169.254." in said or "metadata.google" in said or "MissingCredentials" in said:
        return OSError(errno.EACCES, f"there are no credentials for it; {keys}")
    code, status = _CODE.search(said), _STATUS.search(said)
    if code and code[1] in _CODES:
        return OSError(*_CODES[code[1]])
    if status and status[1] == "401":
        return OSError(errno.EACCES, f"it wants other credentials; {keys}")
    if status and status[1] in _STATUSES:
        return OSError(*_STATUSES[status[1]])
    if status:
        return OSError(errno.EIO, f"it answers {status[1]}{f' {code[1]}' if code else ''}")
    if "timed out" in said or "timeout" in said.lower().partition("debug source")[2].replace("retry_timeout", ""):
        return OSError(errno.ETIMEDOUT, "it does not answer in time; look at its server and the network")
    if "HTTP error" in said or "error sending request" in said:
        return OSError(errno.EHOSTUNREACH, f"it can't be reached; check the endpoint{address} and the network")
    return OSError(errno.EIO, " ".join(said.partition("\n")[0].split())[:160] or kind)


def _server(said: str) -> str:
    found = _SERVER.search(said)
    if found is None:
        return "S3"
    name = found[1] or found[2] or ("GCS" if found[3] else "MicrosoftAzure")
    return name if name in _SERVERS else "S3"
