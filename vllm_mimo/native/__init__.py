"""Native operations (`csrc/`), with torch in their place where they are not built."""
