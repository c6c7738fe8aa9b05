"""The part of the stand-in that is not in the package itself."""
