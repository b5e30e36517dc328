"""What a study will take: engines measured, modelled and simulated under the real scheduler and environments."""
