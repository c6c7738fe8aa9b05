"""Job specs from the files of other tools."""
