"""What the collector is measured against: `python -m bench.references server|producer`.

`server` is the collector's HTTP server with an application that reads the body and forgets it.
`producer` hands the same events to Kafka, idempotent and with acks=all, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import uvicorn
from bench.senders import body_of
from confluent_kafka import KafkaError, Message, Producer

from millstream.runtime.listen import bind

# As long as the collector's answer to a single event, which contains a receipt.
_BODY = b'{"accepted":1,"receipts":["%b"],"rejected":[]}' % (b"x" * 68)
_ANSWER: list[Any] = [
    {
        "type": "http.response.start",
        "status": 202,
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(_BODY)),
        ],
    },
    {"type": "http.response.body", "body": _BODY},
]


async def forget(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    for message in _ANSWER:
        await send(message)


def serve() -> None:
    listener = bind("127.0.0.1", 0, tier="reference")
    config = uvicorn.Config(
        forget,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    uvicorn.Server(config).run([listener])


def produce(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    """How many events Kafka confirmed in so many seconds, with the buffer always full."""
    values = body_of(0, 1_000).split(b"\n")
    kafka = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
        }
    )
    confirmed = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal confirmed
        confirmed += error is None

    warm = time.perf_counter() + 1.0
    started, before = warm, 0
    while (now := time.perf_counter()) < warm + seconds:
        if now < warm:
            started, before = now, confirmed
        for number, value in enumerate(values):
            while True:
                try:
                    kafka.produce(topic, value, str(number), on_delivery=delivered)
                    break
                except BufferError:
                    kafka.poll(0.01)
        kafka.poll(0)
    counted, elapsed = confirmed - before, time.perf_counter() - started
    kafka.flush(30)
    return {"events": counted, "seconds": elapsed}


def main() -> None:
    parser = argparse.ArgumentParser(description="References for bench.collect.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("server")
    producer = kinds.add_parser("producer")
    producer.add_argument("--bootstrap", required=True)
    producer.add_argument("--topic", required=True)
    producer.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    if options.kind == "server":
        serve()
    else:
        print(json.dumps(produce(options.bootstrap, options.topic, options.seconds)))


if __name__ == "__main__":
    main()
