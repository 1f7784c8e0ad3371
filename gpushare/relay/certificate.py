"""The relay's certificate: made at its start, in no file, known by its fingerprint."""

import hashlib
import os
import ssl
import subprocess

from gpushare.processes.helper import ENVIRONMENT

_COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
    *("-subj", "/CN=gpushare", "-days", "36500", "-config", "/dev/null", "-keyout", "-", "-out", "-"),
)
_SECONDS = 20


def make() -> tuple[ssl.SSLContext, bytes]:
    """Returns a context for a server with a new key (ECDSA, P-256), self-signed, and the SHA-256 of its certificate
    (DER). Raises OSError; its text is for people."""
    try:
        done = subprocess.run(
            _COMMAND,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            env=ENVIRONMENT | {"OPENSSL_CONF": "/dev/null"},
            check=False,
        )
    except FileNotFoundError:
        raise OSError("the command openssl is not installed") from None
    except subprocess.TimeoutExpired:
        raise OSError("openssl took too long to make a certificate") from None
    if done.returncode != 0:
        raise OSError("openssl made no certificate: " + done.stderr.decode(errors="replace").strip()[-200:])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # sessions are not resumed
    _load(context, done.stdout)
    pem = done.stdout[done.stdout.index(b"-----BEGIN CERTIFICATE-----") :].decode()
    return context, hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest()


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """The library reads files only: this one has no name, and nobody else can open it."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def client_context() -> ssl.SSLContext:
    """For a client, which compares the fingerprint itself (`Tls.certificate_sha256`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
