"""The collect tier: stores received events on disk, checks them, and forwards them to Kafka.

http/        requests of senders, and their answers
sources.py   which sources this process reads; `connectors` has their readers
  ↓  intake/    the way of each message, and all counts
  ↓  journal/   onto the disk, as received
  ↓  formats/   from bytes to events
  ↓  intake/    to Kafka, until it acknowledges
log
dedup/ recognises duplicates, capacity/ bounds memory and sheds, receipts/ finds accepted events.
"""
