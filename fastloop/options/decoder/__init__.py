"""`decoder=`: how image files are decoded to pixels; each option satisfies the Protocol Decoder."""
