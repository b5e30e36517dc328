"""Games of other libraries as environments: what all such adapters share."""
