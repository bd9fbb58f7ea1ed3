"""Drawings, tables, the report and the checks: they read records and know no Ray."""
