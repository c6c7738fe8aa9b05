"""Job specs as files of other tools."""
