"""`tracker=`: where results are recorded for comparison; each option satisfies Tracker."""
