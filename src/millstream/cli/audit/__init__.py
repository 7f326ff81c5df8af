"""`audit`: checks that every accepted event is accounted for."""
