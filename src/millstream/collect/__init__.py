"""Collection: events come in, are on disk before they are looked at, and stay until Kafka has them.

http.py, fast_path.py   senders' requests, and what they are answered
sources/, source_intake.py      streams that we pull, and their way in
  ↓  intake.py          the way of all that arrives, and what is counted
  ↓  journal/           onto the disk, as it came
  ↓  body.py, entry.py  bytes → the events in them
  ↓  forward.py         to Kafka, and back whether it has them
log
"""
