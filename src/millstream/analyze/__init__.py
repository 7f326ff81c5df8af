"""Analyze: keeps views up to date by continuous queries on Spark.

log → reader → the user's query, with lineage carried through → writer → log

planner   builds each view's query and decides how it can run
reader    Kafka's records as typed rows
lineage   hidden columns through the user's plan
realtime  Spark's own check for real-time mode, without starting anything
writer    result rows as keyed records
queries   the only place that starts queries, and keeps them up
expiry    writes the end of rows that a view no longer keeps
panes     shows rows otherwise than they come, and enters final ones into ledgers
"""
