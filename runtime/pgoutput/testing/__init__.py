"""For tests of your own software: streams that a server would send, and such with a fault."""
