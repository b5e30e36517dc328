"""What finished games amount to: counts, measures, comparisons and their tables; a game shown with its truth."""
