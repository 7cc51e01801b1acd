"""`placement=`: how a batch is moved to the device; each option satisfies the Protocol
Placement."""
