"""Statistics and figures of a run or a grid, and the report made of them."""
