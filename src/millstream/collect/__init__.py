"""Collection: events come in, are checked, and are in the log before anyone is told so.

http.py               senders' requests, and what they are answered
sources/websocket.py  a stream that we pull
  ↓  body.py          bytes → the events in them
  ↓  intake.py        check, number, hand to Kafka, count
log
"""
