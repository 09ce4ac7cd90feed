"""Data: readers of tables; published sets and synthetic ones."""

from neuralef.data.tables import read_table, write_table

__all__ = ["read_table", "write_table"]
