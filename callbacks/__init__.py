"""Lightning callbacks, one concern a file: a pure function plus a thin class that decides when to call it."""
