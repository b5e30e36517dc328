"""Contract suites for the authors of environments and backends."""
