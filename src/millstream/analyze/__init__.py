"""Analyze: keeps views up to date by continuous queries on Spark.

log → records → the user's query, with lineage → records → log

planning    builds each view's query and decides how it runs
records     Kafka records as typed rows, and result rows as keyed records
lineage     hidden columns through the user's plan
windows     kinds of windows: each answers for itself
query       starts queries, and restarts them after failures
recovery    checkpoints, broken events and lost events
watermarks  stream clocks, view watermarks and late events
row_state   which rows are provisional, final, corrected or deleted
triggers    when and how rows are shown; ledgers
shedding    a sample of the input for views that cannot keep up
rebuild     computes a view again beside the one that is served
verify      compares a view with its query in batch over the log
history     queries over the log
monitor     lag, state, topics and drift
spark       the session, its real-time mode and its plans

`service` runs all of it; `upkeep` does the work beside Spark.
"""
