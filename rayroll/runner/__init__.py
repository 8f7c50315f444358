"""The program inside every sandbox, and the client that speaks to it over any byte stream."""
