"""Checks what an upgrade must keep, inside the root that is upgraded. `node.py before SPIN` starts tenants and records
the state, `node.py after kept|ended` compares, `node.py version V` waits for the daemon of that version."""

import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import time

NOTES = pathlib.Path("/run/notes.json")
LEDGER = pathlib.Path("/var/lib/gpushare/ledger.db")


def gpushare(*words):
    return subprocess.run(["gpushare", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def grants():
    return {grant["id"]: grant for grant in json.loads(gpushare("grant", "list", "--json"))["grants"]}


def until(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not within 60 s: {what}"
        time.sleep(0.1)


def busy(grant):
    return grant["devices"][0]["busy_ns"]


def rows():
    with sqlite3.connect(f"file:{LEDGER}?mode=ro", uri=True) as ledger:
        return [[*row] for row in ledger.execute("SELECT id, grant_id, device, from_ns, to_ns, busy_ns FROM periods")]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def before(spin):
    kept = json.loads(gpushare("grant", "create", "--keep", "--memory", "512MiB", "--time", "30%", "--json"))["id"]
    asked = (["--grant", kept], ["--memory", "512MiB", "--time", "20%"])
    work = [spin, "--alloc", "100MiB", "--kernel-ns", "1000000", "--seconds", "900"]
    for one in asked:
        subprocess.Popen(["gpushare", "run", *one, "--", *work], stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: len(grants()) == 2 and all(busy(grant) > 10**8 for grant in grants().values()), "both compute")
    found = grants()
    until(lambda: rows(), "the ledger has rows")
    noted = {name: [grant["phase"], grant["processes"]] for name, grant in found.items()}
    NOTES.write_text(json.dumps({"kept": kept, "grants": noted, "rows": rows()}))


def after(what):
    notes = json.loads(NOTES.read_text())
    pids = [pid for _, members in notes["grants"].values() for pid in members]
    assert len(pids) == 2
    if what == "kept":
        found = grants()
        assert {name: [grant["phase"], grant["processes"]] for name, grant in found.items()} == notes["grants"]
        assert all(map(alive, pids))
        until(lambda: all(busy(grants()[name]) > busy(found[name]) + 10**8 for name in found), "metered on")
    else:
        assert grants() == {}
        for name in notes["grants"]:
            grant = json.loads(gpushare("grant", "show", name, "--json"))
            print(name, grant["phase"], grant["reason"])
        until(lambda: not any(map(alive, pids)), "programs of grants that ended are ended")
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    if what == "kept":
        gpushare("grant", "release", notes["kept"])
    until(lambda: not grants(), "no grant is left")
    now = {tuple(row) for row in rows()}
    assert {tuple(row) for row in notes["rows"]} <= now, "rows of the version before are gone"
    print(f"rows: {len(notes['rows'])} of before, {len(now)} now")
    print(gpushare("usage", "verify"))


def version(wanted):
    def answers():
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect("/run/gpushare/node.sock")
                connection.sendall(b"GET /v1/version HTTP/1.1\r\nHost: gpushare\r\nConnection: close\r\n\r\n")
                return f'"version":"{wanted}"'.encode() in connection.makefile("rb").read().replace(b" ", b"")
            except OSError:
                return False

    until(answers, f"the daemon is {wanted}")


{"before": before, "after": after, "version": version}[sys.argv[1]](sys.argv[2])
