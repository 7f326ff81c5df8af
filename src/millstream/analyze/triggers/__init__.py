"""ShownRows: what clients are shown of a view, and its ledger, where the user asked for either.

rows    what is written of a result row
panes   when a row is shown, and how (trigger, accumulation)
book    what is entered into the ledger
check   whether a view's query gives what its options need
keeper  reads the query's results and writes what is shown and entered, exactly once
told    whether what is shown is what the log says; entered: whether what was entered is
"""
