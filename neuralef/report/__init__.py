"""What a run leaves behind: its record, tables and figures."""
