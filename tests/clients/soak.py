#!/usr/bin/env python3
"""Many requests at once, most of them rude, against `thimble serve` with the embedded model: it must
neither end nor grow, nor leave anyone waiting.

usage: soak.py THIMBLE [REQUESTS]

Random disconnects at any moment, malformed bodies, huge headers, slow readers, invalid UTF-8 and deep
JSON among ordinary requests. Prints the server's resident memory as it goes. Fails where a request is
not answered within 20 s, where memory grew by more than 16 MB between the first quarter and the end,
or where the server does not end cleanly when told to.
"""

import concurrent.futures
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time

COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
SERVER = subprocess.Popen([sys.argv[1], "serve", "--port", "0", "--memory", "512M", "-t", "1"],
                          stderr=subprocess.PIPE, text=True)
PORT = int(re.search(r":(\d+)/v1", SERVER.stderr.readline())[1])
TIMEOUT = 20  # seconds
BODY = {"messages": [{"role": "user", "content": "Who was the first man?"}], "max_tokens": 12,
        "reasoning_effort": "none"}


def resident_kb():
    with open(f"/proc/{SERVER.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def post(path, body, headers=""):
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def talk(data, read=True, pause=0.0, limit=1 << 20):
    with socket.create_connection(("127.0.0.1", PORT), timeout=TIMEOUT) as connection:
        connection.sendall(data)
        received = b""
        while read and len(received) < limit:
            piece = connection.recv(64 if pause else 65536)
            if not piece:
                break
            received += piece
            time.sleep(pause)
        return received


def ordinary(rng):
    body = dict(BODY, seed=rng.randrange(1000), stream=rng.random() < 0.5)
    answer = talk(post("/v1/chat/completions", json.dumps(body).encode()))
    assert b" 200 " in answer[:20] or b" 429 " in answer[:20], answer[:200]
    return answer


def hang_up(rng):
    body = dict(BODY, max_tokens=400, stream=rng.random() < 0.5)
    with socket.create_connection(("127.0.0.1", PORT), timeout=TIMEOUT) as connection:
        data = post("/v1/chat/completions", json.dumps(body).encode())
        connection.sendall(data[: rng.randrange(1, len(data))] if rng.random() < 0.3 else data)
        time.sleep(rng.random() * 0.3)


def malformed(rng):
    bodies = [b"{", b"[" * 100_000, b'{"messages": "\xff\xfe"}', b'{"messages": [{"role": 7}]}',
              json.dumps(dict(BODY, n=5)).encode(), b"\x00" * 1000, b"",
              json.dumps(dict(BODY, response_format={"type": "json_schema", "json_schema": {
                  "name": "x", "schema": {"$ref": "#"}}})).encode()]
    talk(post(rng.choice(["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize",
                          "/nothing"]), rng.choice(bodies)))


def huge_headers(_):
    try:
        talk(post("/v1/chat/completions", b"{}", "A: " + "b" * 300_000 + "\r\n"))
    except ConnectionError:
        pass  # the server may close while it is still being written to


def slow_reader(_):
    talk(post("/v1/chat/completions", json.dumps(dict(BODY, stream=True)).encode()), pause=0.01,
         limit=2000)


def one(number):
    rng = random.Random(number)
    kind = rng.choices([ordinary, hang_up, malformed, huge_headers, slow_reader],
                       [50, 20, 20, 5, 5])[0]
    kind(rng)
    return kind.__name__


def soak():
    counts = {}
    early = None
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for done, kind in enumerate(pool.map(one, range(COUNT)), start=1):
            counts[kind] = counts.get(kind, 0) + 1
            if done == COUNT // 4:
                early = resident_kb()
            if done % (COUNT // 8) == 0:
                print(f"{done} requests, {time.time() - start:.0f} s, {resident_kb()} kB resident",
                      flush=True)
    print(counts)
    health = talk(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b'"ok"' in health, health
    grown = resident_kb() - early
    assert grown < 16_000, f"memory grew by {grown} kB"


def main():
    try:
        soak()
        SERVER.send_signal(signal.SIGTERM)
        assert SERVER.wait(timeout=TIMEOUT) == 0
    finally:
        SERVER.kill()


main()
