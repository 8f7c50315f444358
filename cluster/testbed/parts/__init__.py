"""One file here is one part of the test bed, found by its name; it ends in `PART = ...`."""
