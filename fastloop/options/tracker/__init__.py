"""`tracker=`: the place that records results for comparison; each option satisfies the Protocol
Tracker."""
